"""Limits, rows, the choice of cases and peers, and a whole run on the CPU with a fake clock."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bench_sample import LIMITS, fake_clock, record, sample_rows
from torch import Tensor

from retrograd.bench.environment import folder_name, versions
from retrograd.bench.limits import COPY_BYTES, EXP_ROUNDS, EXP_TILE, EXPS, Limits, exp_program
from retrograd.bench.measure import input_sets
from retrograd.bench.peers import NotApplicableError, Peer, peers
from retrograd.bench.results import Row, Speeds, append, frame, latest, read
from retrograd.bench.run import time_cases
from retrograd.bench.selection import bench_cases, chosen_peers, sets_for, thinned, tiny
from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.ops.infos import info

INFO = info("rms_norm")
KEYS = ["op", "case", "shape", "dtype", "pass", "impl", "framework", "device_ms", "host_us", "limit_ms", "bound", "gpu",
        "versions", "commit", "date"]  # fmt: skip


def test_limits() -> None:
    limits = Limits.timed(copy_ms=1.0, matmul_ms=2.0, exp_ms=3.0)
    assert limits.copy == 2 * COPY_BYTES * 1e3
    assert limits.copy_ms == pytest.approx(1.0)
    assert limits.matmul_ms == pytest.approx(2.0)
    assert limits.exp_ms == pytest.approx(3.0)
    for work, expected in (((4e9, 7e10), "bytes"), ((4e6, 7e11), "flops"), ((1e9, 1e9, 4e9), "exp")):
        ms, bound = LIMITS.of(*work)
        assert ms == pytest.approx(1.0)
        assert bound == expected


@pytest.mark.compile
@pytest.mark.parametrize("name", list(SUPPORTED))
def test_exponentials(name: str) -> None:
    program = exp_program()
    (launch,) = program.launches
    built = build(launch, program.arrays, SUPPORTED[name])
    assert launch.grid * EXP_TILE * EXP_ROUNDS == EXPS
    if built.metadata.target.backend == "cuda":
        assert built.asm["ptx"].count("ex2.approx.ftz.f32") == EXP_TILE // (32 * launch.num_warps)


def test_round_trip(tmp_path: Path) -> None:
    import json

    path = tmp_path / "new" / "rms_norm.jsonl"
    for row in sample_rows():
        append(path, row)
    found = read(path)
    assert [row.to_json() for row in found] == [row.to_json() for row in sample_rows()]
    assert list(json.loads(path.read_text().splitlines()[-1])) == KEYS
    with pytest.raises(ValueError, match="not a row"):
        Row.from_json("{}")


def test_speeds_come_from_the_limits_of_the_same_run() -> None:
    rows = sample_rows()
    speeds = Speeds(rows)
    forward = [row for row in rows if row.case == "M4096_N256" and row.pass_ == "fwd"]
    for measured, expected, unit in (
        (speeds.of(forward[0]), 4000, "GB/s"),
        (speeds.of(forward[1]), 2000, "GB/s"),
        (Speeds(forward).of(forward[1]), 50, "% of limit"),
    ):
        assert measured is not None
        assert measured[0] == pytest.approx(expected)
        assert measured[1] == unit
    table = frame(rows)
    assert set(table["unit"]) == {"GB/s", "TFLOP/s", "Gexp/s"}
    assert table["fraction"].max() == pytest.approx(1)


def test_the_latest_run_counts() -> None:
    first: list[Row] = []
    for date in ("2026-01-01", "2026-01-02"):
        record(first.append, date=date).add_limits()
    assert len(latest(first)) == 6
    assert len(latest(sample_rows() + sample_rows())) == len(sample_rows())


def test_selection() -> None:
    cases = bench_cases(INFO)
    few = thinned(INFO, cases)
    widths = {(case.shape["N"], case.name.split("M")[0]) for case in cases}
    assert len(few) == len(widths)
    assert "M32768_N4096" in few
    assert [case.name for case in bench_cases(INFO, ["M4096_N256", "gated_M16*"])] == [
        "M4096_N256",
        "gated_M16384_N8192",
    ]
    with pytest.raises(ValueError, match="no benchmark case"):
        bench_cases(INFO, ["nothing"])
    with pytest.raises(ValueError, match="peer is 'nobody'"):
        chosen_peers("rms_norm", "torch", ["nobody"])
    assert [peer.name for peer in chosen_peers("rms_norm", "torch", [])] == []
    for case in cases:
        small = tiny(INFO, case)
        assert small is not None
        assert small.options.keys() == case.options.keys()
        bytes_drawn = sets_for(INFO, case) * (INFO.bytes_moved(case, "fwd") + INFO.bytes_moved(case, "bwd"))
        assert bytes_drawn < 40e9
    assert input_sets(1) == 63
    assert input_sets(2**40) == 3


def test_peers() -> None:
    names = ["torch", "torch.compile", "liger", "liger_cute", "quack"]
    assert [peer.name for peer in peers("rms_norm", "torch")] == names
    assert [peer.name for peer in peers("rms_norm", "jax")] == ["xla"]
    assert peers("no_such_op", "torch") == ()
    for peer in peers("rms_norm", "torch"):
        with pytest.raises(NotApplicableError, match="it takes no group_size"):
            peer.build(INFO.case("mamba2") if peer.name.startswith("torch") else INFO.case("groups"))


class LigerRMSNormFunction:
    """Liger's function, with the arguments that it has in each of its implementations."""

    @staticmethod
    def apply(X: Tensor, W: Tensor | None, eps: float, offset: float, casting_mode: str, in_place: bool) -> Tensor:
        assert (offset, casting_mode, in_place) == (0.0, "llama", False)
        return torch.nn.functional.rms_norm(X, X.shape[-1:], None if W is None else W.to(X.dtype), eps)


@pytest.mark.parametrize(
    ("name", "module"),
    [("liger", "liger_kernel.ops.rms_norm"), ("liger_cute", "liger_kernel.ops.cutedsl.ops.rms_norm")],
)
def test_implementations_of_liger(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(LigerRMSNormFunction=LigerRMSNormFunction))
    rows: list[Row] = []
    notes: list[str] = []
    (peer,) = chosen_peers("rms_norm", "torch", [name])
    recorded = record(rows.append, notes.append)
    assert time_cases(recorded, [INFO.case("plain")], [peer], fake_clock(), "cpu") == []
    assert not notes
    assert {row.pass_ for row in rows if row.impl == name and row.device_ms is not None} == {"fwd", "bwd"}
    with pytest.raises(NotApplicableError, match="it takes no bias"):
        peer.build(INFO.case("bias"))


def test_a_norm_of_liger_in_cute_takes_no_residual() -> None:
    (peer,) = chosen_peers("rms_norm", "torch", ["liger_cute"])
    with pytest.raises(NotApplicableError, match="it takes no residual"):
        peer.build(INFO.case("prenorm"))


def test_run_on_the_cpu() -> None:
    rows: list[Row] = []
    notes: list[str] = []

    def wrong(case: object) -> None:
        raise RuntimeError("broken peer")

    beside = [*chosen_peers("rms_norm", "torch", ["torch", "liger"]), Peer("wrong", wrong)]  # type: ignore[arg-type]
    cases = [INFO.case(name) for name in ("plain", "prenorm", "gate_before", "bias")]
    assert time_cases(record(rows.append, notes.append), cases, beside, fake_clock(), "cpu") == []
    assert rows[0].op == rows[1].op == "limits"
    for name in ("plain", "prenorm", "gate_before"):
        for impl in ("retrograd", "torch"):
            own = [row for row in rows if (row.case, row.impl) == (name, impl)]
            assert [(row.pass_, row.device_ms) for row in own] == [
                ("fwd", None), ("bwd", None), ("fwd+bwd", None), ("fwd", 0.5), ("bwd", 0.5),
            ]  # fmt: skip
            assert all(row.host_us == 7.0 for row in own)
    assert any("wrong is left out (first at plain): RuntimeError: broken peer" in note for note in notes)
    assert any("torch is left out (first at bias): it takes no bias" in note for note in notes)


def test_run_tells_when_retrograd_fails_or_a_peer_computes_something_else() -> None:
    import dataclasses

    rows: list[Row] = []
    notes: list[str] = []
    case = INFO.case("plain")

    def doubled(x: object, **arguments: object) -> object:
        return 2 * INFO.torch(x, **arguments)

    recorded = record(rows.append, notes.append)
    recorded.info = dataclasses.replace(INFO, torch=doubled)
    assert time_cases(recorded, [case], chosen_peers("rms_norm", "torch", ["torch"]), fake_clock(), "cpu") == []
    assert any("away from retrograd's" in note for note in notes)

    recorded.info = dataclasses.replace(INFO, torch=print)
    assert time_cases(recorded, [case], [], fake_clock(), "cpu") == ["plain"]


@pytest.mark.usefixtures("jax_promotes")
def test_run_in_jax() -> None:
    pytest.importorskip("jax")
    from retrograd.bench import run_jax

    rows: list[Row] = []
    notes: list[str] = []
    recorded = record(rows.append, notes.append)
    recorded.framework = "jax"
    clock = run_jax.Clock(lambda call: call() and 64.0, lambda call: call() is not None and 7.0)
    cases = [INFO.case(name) for name in ("plain", "prenorm")]
    assert run_jax.time_cases(recorded, cases, chosen_peers("rms_norm", "jax", None), clock) == []
    assert notes == []
    assert {row.impl for row in rows} == {"retrograd", "xla"}
    assert {(row.device_ms, row.timing) for row in rows if row.limit_ms and row.op != "limits"} == {(2.0, "wall")}


def test_environment() -> None:
    assert folder_name("NVIDIA H200") == "h200"
    assert folder_name("AMD Instinct MI300X") == "instinct-mi300x"
    assert list(versions(["torch", "no-such-distribution"])) == ["retrograd", "torch"]
