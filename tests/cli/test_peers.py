"""The peers of the recurrences agree with the ops; plain formulas replace the peers that need a GPU."""

import os
import sys
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_infos import INFOS, conv_case, linear_scan, scan_case, selective_case, selective_scan
from bench_sample import LIMITS, fake_clock
from torch import Tensor

from retrograd.bench.environment import Stamp
from retrograd.bench.measure import Timing
from retrograd.bench.peers import NotApplicableError, Peer, peers
from retrograd.bench.record import Record
from retrograd.bench.results import LIMITS as LIMIT_ROWS
from retrograd.bench.results import Row, Speeds, append, read
from retrograd.bench.run import own_function, time_cases
from retrograd.bench.selection import bench_cases, chosen_peers, sets_for, sparse, thinned
from retrograd.opinfo import cases
from retrograd.opinfo.cases import Case
from retrograd.ops.gated_delta_rule.cases import case as delta_case
from retrograd.ops.infos import info as info_of
from retrograd.ops.ssd.cases import case as ssd_case
from retrograd.ops.ssd.reference import ssd
from retrograd.testing.draw import draw

TEST = frozenset({"test"})


def record(op: str, rows: list[Row], notes: list[str], framework: Any = "torch") -> Record:
    stamp = Stamp("NVIDIA H200", "abc1234", "2026-01-01T00:00:00Z")
    return Record(INFOS[op], framework, stamp, LIMITS, rows.append, notes.append)


def timed(op: str, case: Case, names: list[str] | None) -> set[str]:
    """The peers that were timed on a CPU, so their results agreed with the op's."""
    rows: list[Row] = []
    notes: list[str] = []
    time_cases(record(op, rows, notes), [case], chosen_peers(op, "torch", names), fake_clock(), "cpu")
    assert not notes, notes
    return {row.impl for row in rows if row.device_ms is not None and row.op != LIMIT_ROWS}


def hgrn(x: Tensor, g: Tensor) -> tuple[Tensor, None]:
    return linear_scan(g.exp(), x), None


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    delta_bias: Tensor,
    delta_softplus: bool,
) -> Tensor:
    assert all(tensor.is_contiguous() for tensor in (u, delta, z, B, C))
    x, dt, gate = (tensor.transpose(1, 2) for tensor in (u, delta, z))
    B, C = (tensor[:, 0].transpose(1, 2) for tensor in (B, C))
    return selective_scan(x, dt, A, B, C, D, gate, delta_bias, delta_softplus).transpose(1, 2).contiguous()


def simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float) -> tuple[Tensor, None]:
    state, y = torch.zeros(*v[:, 0].shape, k.shape[-1]), []
    for t in range(v.shape[1]):
        state = g[:, t, :, None, None].exp() * state + v[:, t, ..., None].float() * k[:, t, :, None].float()
        y.append(scale * (state * q[:, t, :, None].float()).sum(-1))
    return torch.stack(y, 1).to(v.dtype), None


def mamba_chunk_scan_combined(*arguments: Any, **options: Any) -> Tensor:
    *inputs, chunk = arguments
    assert chunk == 256
    y = ssd(*inputs, **options)
    assert isinstance(y, Tensor)
    modes.append(os.environ["MAMBA_DETERMINISTIC"])
    if y.requires_grad:
        y.register_hook(lambda gradient: modes.append("backward " + os.environ["MAMBA_DETERMINISTIC"]))
    return y


modes: list[str] = []


def test_a_peer_is_timed_on_inputs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla.ops.hgrn", SimpleNamespace(chunk_hgrn=hgrn))
    assert timed("linear_scan", scan_case(2, 7, 5, TEST), ["fla"]) == {"retrograd", "fla"}
    monkeypatch.setitem(sys.modules, "selective_scan_cuda", SimpleNamespace(fwd=None))
    interface = SimpleNamespace(selective_scan_fn=selective_scan_fn)
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops.selective_scan_interface", interface)
    for dtype in ("float32", "bfloat16"):
        small = selective_case(2, 6, 5, 3, dtype, TEST)
        assert timed("selective_scan", small, ["mamba_ssm"]) == {"retrograd", "mamba_ssm"}


@pytest.fixture
def peers_of_ssd(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = SimpleNamespace(mamba_chunk_scan_combined=mamba_chunk_scan_combined)
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops.triton.ssd_combined", scan)
    monkeypatch.setitem(
        sys.modules, "mamba_ssm.utils.determinism", SimpleNamespace(use_deterministic_mode=lambda: False)
    )
    monkeypatch.setitem(sys.modules, "fla.ops.simple_gla", SimpleNamespace(chunk_simple_gla=simple_gla))
    monkeypatch.setenv("MAMBA_DETERMINISTIC", "")
    monkeypatch.setattr("retrograd.bench.run.sets_for", lambda info, case: 1)
    monkeypatch.setattr("retrograd.bench.loop.tiny", lambda info, case: None)
    modes.clear()


@pytest.mark.usefixtures("peers_of_ssd")
def test_peers_of_ssd() -> None:
    small = (1, 5, 4, 3, 2, 2)
    for case in (ssd_case("mamba", small), ssd_case("wide", small, wide_D=True)):
        assert timed("ssd", case, None) == {"retrograd", "mamba_ssm", "mamba_ssm-det", "fla"}
    gated = ssd_case("gated", small, given={"z"})
    assert timed("ssd", gated, ["mamba_ssm"]) == {"retrograd", "mamba_ssm"}
    with pytest.raises(NotApplicableError, match="it takes no z"):
        peers("ssd", "torch")[2].build(gated)


@pytest.mark.usefixtures("peers_of_ssd")
def test_a_backward_pass_of_mamba_ssm_has_the_mode_of_its_forward_pass() -> None:
    case = ssd_case("mamba", (1, 3, 2, 2, 1, 2), dtype="float32")
    arguments = {name: torch.rand(tensor.shape, requires_grad=True) for name, tensor in case.inputs.items()}
    outputs = [peer.build(case)(arguments) for peer in peers("ssd", "torch")[:2]]  # type: ignore[operator]
    for y in outputs:
        y.sum().backward()
    assert modes == ["0", "1", "backward 0", "backward 1"]


def test_convolution() -> None:
    assert timed("causal_conv1d", conv_case(2, 9, 6, TEST), ["torch"]) == {"retrograd", "torch"}


@pytest.mark.slow
def test_compiled_convolution() -> None:
    assert timed("causal_conv1d", conv_case(2, 9, 6, TEST), ["torch.compile"]) == {"retrograd", "torch.compile"}


@pytest.mark.slow
def test_torch_associative_scan() -> None:
    names = ["torch.associative_scan"]
    assert timed("linear_scan", scan_case(2, 8, 5, TEST), names) == {"retrograd", *names}
    (peer,) = chosen_peers("linear_scan", "torch", names)
    with pytest.raises(NotApplicableError, match="some lengths alone"):
        peer.build(scan_case(8, 96, 2048))


@pytest.mark.usefixtures("jax_promotes")
def test_peers_in_jax() -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    drawn = {name: torch.rand(2, 7, 5) for name in "ab"} | {"initial_state": torch.randn(2, 5)}
    for reverse in (False, True):
        for name in ("lax.scan", "lax.associative_scan"):
            case = scan_case(2, 7, 5, TEST, initial_state=name == "lax.scan", reverse=reverse)
            (peer,) = chosen_peers("linear_scan", "jax", [name])
            tensors = {argument: drawn[argument] for argument in case.inputs}
            found = peer.build(case)({key: jnp.asarray(tensor.numpy()) for key, tensor in tensors.items()})  # type: ignore[operator]
            torch.testing.assert_close(torch.tensor(jax.device_get(found)), linear_scan(**tensors, reverse=reverse))
    case = conv_case(2, 9, 6, TEST, dtype="float32")
    tensors = {name: torch.randn(tensor.shape) for name, tensor in case.inputs.items()}
    expected = INFOS["causal_conv1d"].torch(**tensors, activation="silu")
    (peer,) = chosen_peers("causal_conv1d", "jax", ["xla"])
    found = peer.build(case)({key: jnp.asarray(tensor.numpy()) for key, tensor in tensors.items()})  # type: ignore[operator]
    torch.testing.assert_close(torch.tensor(jax.device_get(found)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("jax_promotes")
def test_the_peer_of_ssd_in_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    def linear_attention(kind: str, q: Any, k: Any, v: Any, *, g: Any, scale: float, impl: str) -> tuple[Any, None]:
        assert (kind, impl) == ("simple_gla", "mosaic_gpu")
        q, k = (jnp.repeat(array, v.shape[2] // array.shape[2], 2) for array in (q, k))
        q, k, v, g = (torch.tensor(jax.device_get(array)) for array in (q, k, v, g))
        return jnp.asarray(simple_gla(q, k, v, g, scale)[0]), None

    monkeypatch.setitem(sys.modules, "jla.ops", SimpleNamespace(linear_attention=linear_attention))
    (peer,) = peers("ssd", "jax")
    shape = (1, 5, 4, 3, 2, 2)
    for case in (ssd_case("mamba", shape, dtype="float32"), ssd_case("plain", shape, dtype="float32", given=set())):
        tensors = draw(case, "cpu", 0)
        found = peer.build(case)({name: jnp.asarray(tensor.numpy()) for name, tensor in tensors.items()})  # type: ignore[operator]
        torch.testing.assert_close(
            torch.tensor(jax.device_get(found)), INFOS["ssd"].reference(**tensors, **case.options)
        )


@pytest.mark.usefixtures("jax_promotes")
@pytest.mark.parametrize("of_channels", [False, True], ids=["heads", "channels"])
@pytest.mark.parametrize("cu_seqlens", [None, (0, 2, 2, 5)], ids=["batch", "packed"])
def test_the_peer_of_gated_delta_rule_in_jax(
    of_channels: bool, cu_seqlens: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    case = delta_case(
        "any", (1, 5, 2, 4, 3, 4), dtype="float32", of_channels=of_channels, cu_seqlens=cu_seqlens, normalize_qk=True
    )
    tensors = draw(case, "cpu", 0)
    reference = info_of("gated_delta_rule").reference

    def linear_attention(kind: str, *, use_qk_l2norm: bool, impl: str, **inputs: Any) -> tuple[Any, None]:
        assert (kind, impl) == ("kda" if of_channels else "gated_deltanet", "mosaic_gpu")
        ids = inputs.pop("segment_ids", jnp.zeros((1, 5)))
        of_step, given = ids[0].tolist(), {name: torch.tensor(jax.device_get(x)) for name, x in inputs.items()}
        steps = [[t for t in range(5) if of_step[t] == n] for n in sorted(set(of_step))]
        one = partial(reference, normalize_qk=use_qk_l2norm)
        parts = [one(**{name: x[:, own] for name, x in given.items()}) for own in steps]
        return jnp.asarray(torch.cat(parts, 1)), None

    monkeypatch.setitem(sys.modules, "jla.ops", SimpleNamespace(linear_attention=linear_attention))
    (peer,) = peers("gated_delta_rule", "jax")
    found = peer.build(case)({name: jnp.asarray(tensor.numpy()) for name, tensor in tensors.items()})  # type: ignore[operator]
    torch.testing.assert_close(torch.tensor(jax.device_get(found)), reference(**tensors, **case.options))


def test_what_is_not_installed_is_left_out() -> None:
    assert "fla" not in sys.modules
    with pytest.raises(NotApplicableError, match="fla is not installed"):
        peers("linear_scan", "torch")[0].build(INFOS["linear_scan"].cases[-1])
    with pytest.raises(NotApplicableError, match="selective_scan_cuda is not installed"):
        peers("selective_scan", "torch")[0].build(INFOS["selective_scan"].cases[-1])
    for framework in ("torch", "jax"):
        for peer in peers("ssd", framework):
            with pytest.raises(NotApplicableError, match="is not installed"):
                peer.build(INFOS["ssd"].cases[-1])


def test_a_peer_says_what_it_does_not_take() -> None:
    case = scan_case(2, 7, 5, TEST, initial_state=True)
    for framework in ("torch", "jax"):
        (first, *_) = peers("linear_scan", framework)
        with pytest.raises(NotApplicableError, match="it takes no initial_state"):
            first.build(case)
    packed = cases.Tensor((3,), "int32", values=(0, 3, 7))
    with pytest.raises(NotApplicableError, match="it takes no cu_seqlens"):
        peers("selective_scan", "torch")[0].build(Case("packed", {"x": packed, "cu_seqlens": packed}))


def test_a_peer_may_take_large_cases_only() -> None:
    def build(case: Case) -> Any:
        if "test" in case.tags:
            raise NotApplicableError("it takes many steps only")
        return own_function(INFOS["linear_scan"], case)

    rows: list[Row] = []
    notes: list[str] = []
    case = next(iter(bench_cases(INFOS["linear_scan"])))
    small = replace(case, inputs={name: replace(tensor, shape=(2, 5, 3)) for name, tensor in case.inputs.items()})
    time_cases(record("linear_scan", rows, notes), [small], [Peer("large", build, "torch")], fake_clock(), "cpu")
    assert not notes
    assert {row.pass_ for row in rows if row.impl == "large"} == {"fwd", "bwd"}


def test_what_a_failed_peer_held_is_free_for_the_next() -> None:
    held: list[weakref.ref[Tensor]] = []

    def fails(case: Case) -> Any:
        large = torch.zeros(1000)
        held.append(weakref.ref(large))
        try:
            raise MemoryError(len(large))
        except MemoryError as error:
            kept = error  # a cycle: the frame holds the error, whose traceback holds the frame
            raise kept from None

    def sees(case: Case) -> Any:
        assert [one() for one in held] == [None] * len(held)
        return own_function(INFOS["linear_scan"], case)

    rows: list[Row] = []
    notes: list[str] = []
    case = next(iter(bench_cases(INFOS["linear_scan"])))
    small = replace(case, inputs={name: replace(tensor, shape=(2, 5, 3)) for name, tensor in case.inputs.items()})
    both = [Peer(name, build, "torch") for name, build in (("fails", fails), ("sees", sees))]
    time_cases(record("linear_scan", rows, notes), [small], both, fake_clock(), "cpu")
    assert held
    assert {row.pass_ for row in rows if row.impl == "sees"} >= {"fwd", "bwd"}


def packed(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    assert cu_seqlens.dtype == torch.int32
    return x * cu_seqlens[-1]


@pytest.mark.usefixtures("jax_promotes")
def test_inputs_of_every_kind() -> None:
    """In both frameworks, integers have no gradient and complex numbers have one."""
    import dataclasses

    inputs = {"x": cases.Tensor((1, 7, 2), "complex64", law="decay"),
              "cu_seqlens": cases.Tensor((3,), "int32", values=(0, 3, 7))}  # fmt: skip
    case = Case("kinds", inputs, {}, TEST, {"B": 1, "T": 7, "D": 2})
    for framework in ("torch", "jax"):
        rows: list[Row] = []
        notes: list[str] = []
        recorded = record("linear_scan", rows, notes, framework)
        recorded.info = dataclasses.replace(
            INFOS["linear_scan"], torch=packed, jax=lambda: lambda x, cu_seqlens: x * cu_seqlens[-1]
        )
        recorded.info = dataclasses.replace(recorded.info, cases=[case])
        again = Peer("again", lambda case: lambda arrays: arrays["x"] * arrays["cu_seqlens"][-1])
        if framework == "torch":
            assert time_cases(recorded, [case], [again], fake_clock(), "cpu") == []
        else:
            run_jax = pytest.importorskip("retrograd.bench.run_jax")
            clock = run_jax.Clock(lambda call: call() and 64.0, lambda call: call() is not None and 7.0)
            assert run_jax.time_cases(recorded, [case], [again], clock) == []
        assert not notes
        assert {row.impl for row in rows if row.op != LIMIT_ROWS} == {"retrograd", "again"}


def test_which_cases_are_timed() -> None:
    scan = INFOS["linear_scan"]
    chosen = bench_cases(scan)
    curve = [case.shape["T"] for case in sparse(scan, chosen) if case.shape["B"] == 8]
    assert len(thinned(scan, chosen)) == 3
    assert {64, 256, 1024, 4096, 16384, 65536} <= set(curve)
    assert len(curve) < 9
    for info in INFOS.values():
        for case in bench_cases(info):
            held = sets_for(info, case) * (info.bytes_moved(case, "fwd") + info.bytes_moved(case, "bwd"))
            assert held < 45e9


def test_sets_apart_in_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large sets of inputs are passed one per call."""
    import dataclasses

    run_jax = pytest.importorskip("retrograd.bench.run_jax")
    monkeypatch.setattr(run_jax, "APART_BYTES", 0)
    rows: list[Row] = []
    notes: list[str] = []
    recorded = record("linear_scan", rows, notes, "jax")
    (scan, step_by_step) = chosen_peers("linear_scan", "jax", None)
    case = scan_case(2, 7, 5, TEST)
    own = step_by_step.build(case)
    recorded.info = dataclasses.replace(INFOS["linear_scan"], jax=lambda: lambda a, b: own({"a": a, "b": b}))  # type: ignore[operator]
    clock = run_jax.Clock(lambda call: len(call()), lambda call: call() is not None and 7.0)
    assert run_jax.time_cases(recorded, [case], [scan], clock) == []
    assert not notes
    timed = [row for row in rows if row.limit_ms and row.op != LIMIT_ROWS]
    assert [(row.impl, row.pass_, row.device_ms) for row in timed] == [
        (impl, which, 1.0) for impl in ("retrograd", "lax.associative_scan") for which in ("fwd", "bwd")
    ]


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("op", list(INFOS))
def test_plots(op: str, framework: Any, tmp_path: Path) -> None:
    """Every shape of the recurrences can be plotted, for any bound and any spread of the peers' speeds."""
    pytest.importorskip("matplotlib")
    from retrograd.bench.plot import draw

    info = INFOS[op]
    rows: list[Row] = []
    recorded = record(op, rows, [], framework)
    recorded.add_limits()
    for case in bench_cases(info):
        for which in ("fwd", "bwd"):
            least, _ = LIMITS.of(info.bytes_moved(case, which), 0, info.exps(case, which) if info.exps else 0)
            for place, peer in enumerate([Peer("retrograd", lambda case: print), *peers(op, framework)]):
                recorded.add(case, which, peer, Timing(least * 1.2 * 6**place, "graph"), 5.0)
    speeds = Speeds(rows)
    bounds = {row.bound for row in rows if row.op == op}
    assert bounds == {"bytes"} | {"selective_scan": {"exp"}, "ssd": {"flops"}}.get(op, set())
    assert all(speed[1] == "Gexp/s" for row in rows if row.bound == "exp" and (speed := speeds.of(row)))
    file = tmp_path / "rows.jsonl"
    for row in rows:
        append(file, row)
    draw(read(file), tmp_path / "picture.png", framework)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_own_function_takes_every_input() -> None:
    info = INFOS["linear_scan"]
    case = info.cases[-1]
    inputs = {name: torch.rand(tensor.shape) for name, tensor in case.inputs.items()}
    (found,) = own_function(info, case)(inputs)
    torch.testing.assert_close(found, linear_scan(inputs["a"], inputs["b"]))
