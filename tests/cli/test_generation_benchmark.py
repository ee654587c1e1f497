"""What benchmarks/generate.py compares is the same model; on a CPU its tiny models run from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import DeviceType

from retrograd.nn import LanguageModel

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
generate, moved, impls, generation_row, shapes, own_process, plain = (
    import_module(name)
    for name in (
        "generate",
        "generation_bytes",
        "generation_impls",
        "generation_row",
        "generation_shapes",
        "own_process",
        "plain_generation",
    )
)

TINY, FULL = shapes.TINY, shapes.FULL
STEPS = 20


def tensors(state: Any) -> list[Tensor]:
    """All tensors of a state but counts of steps."""
    if isinstance(state, Tensor):
        return [state] if state.is_floating_point() else []
    return [found for part in state or () for found in tensors(part)]


def test_kernels_that_overlap_are_busy_once() -> None:
    assert generation_row.busy([(4.0, 6.0), (0.0, 2.0), (1.0, 3.0), (4.5, 5.0)]) == 5


@pytest.mark.parametrize("name", shapes.MODELS)
def test_the_plain_model_is_the_model_of_retrograd_nn(name: str) -> None:
    config = TINY.configs[name]
    torch.manual_seed(0)
    model = LanguageModel(config)
    peer = plain.PlainModel(config, model.state_dict(), 2, STEPS)
    tokens = torch.randint(config.vocab_size, (2, STEPS))
    logits = model(tokens)
    for number in range(STEPS):
        peer.tokens.copy_(tokens[:, number])
        peer.step()
        assert torch.allclose(peer.logits, logits[:, number], atol=1e-5)
        assert torch.equal(peer.tokens, peer.logits[:, : config.vocab_size].argmax(-1))
    assert peer.position.item() == STEPS


@pytest.mark.parametrize("name", shapes.MODELS)
def test_bytes_are_those_of_the_weights_and_of_the_state(name: str) -> None:
    config, batch, keys = FULL.configs[name], 3, 100
    model = LanguageModel(config, device="meta", dtype=torch.bfloat16)
    bytes_moved = moved.moved(config, batch, keys)
    assert bytes_moved.weights == sum(p.nbytes for p in model.parameters())
    state = model.initial_state(batch, capacity=keys)
    assert bytes_moved.state_read == sum(part.nbytes for part in tensors(state))
    slot = model.initial_state(batch, capacity=1)
    assert bytes_moved.state_written == sum(part.nbytes for part in tensors(slot))
    assert bytes_moved.all == bytes_moved.weights + bytes_moved.state_read + bytes_moved.state_written


@pytest.mark.parametrize("name", shapes.IMPLS[shapes.TRANSFORMERS])
def test_models_of_transformers_have_the_same_parameters(name: str) -> None:
    pytest.importorskip("transformers")
    config = TINY.configs[name]
    peer, _ = impls.TRANSFORMERS_MODELS[name](config)
    own = LanguageModel(config)
    expected, found = (sorted(p.shape for p in model.parameters()) for model in (own, peer))
    assert sum(map(torch.Size.numel, found)) == sum(map(torch.Size.numel, expected))
    # In Llama q, k and v, and gate and input of the MLP, are parameters of their own.
    assert found == expected or name == shapes.TRANSFORMER


def test_models_are_those_of_the_task() -> None:
    for name, config in FULL.configs.items():
        assert (config.d_model, config.n_layer, config.padded_vocab_size) == (1024, 24, 50280)
        assert config.tie_embeddings
        assert len(config.attn_layer_idx) == {shapes.TRANSFORMER: 24, shapes.HYBRID: 3}.get(name, 0)
        # The cache is full when the last token is timed, and an exact Mamba-2's window half full in profiled ones.
        assert FULL.prompt_of(name) + FULL.generated == (2048 if config.attn_layer_idx else 16 + FULL.generated)
        first = FULL.first_profiled(name)
        assert first >= FULL.warm_up
        middle = FULL.prompt_of(name) + first + FULL.profiled // 2
        assert middle % shapes.WINDOW == shapes.WINDOW // 2
        assert not config.attn_layer_idx or middle + FULL.profiled <= FULL.slots
    assert FULL.train[0] * FULL.train[1] == 16384


def measured(job: Any) -> list[dict[str, Any]]:
    """The rows of a job in this process."""
    readies: list[None] = []
    rows = list(generation_row.rows(job, TINY, 0.0, None, lambda: readies.append(None)))
    assert len(readies) == 1
    for row in rows:
        assert row["gpu"] == "cpu"
        assert "torch" in row["versions"]
        assert json.loads(json.dumps(row)) == row
    return rows


@pytest.mark.parametrize("impl", shapes.IMPLS)
def test_rows_of_tokens(impl: str) -> None:
    if impl == shapes.TRANSFORMERS:
        pytest.importorskip("transformers")
    name = shapes.IMPLS[impl][-1]
    rows = measured(shapes.Job(shapes.TOKEN, name, impl, 2))
    assert {row["impl"] for row in rows} == ({impl, shapes.READ} if impl == shapes.NN else {impl})
    for row in rows:
        row = generate.with_limit(row, 1e9)
        assert row["shape"] == {"B": 2, "prompt": TINY.prompt_of(name), "warm_up": 2, "tokens": 4}
        assert row["wall_ms"] > 0
        assert row["wall_ms_runs"] == [row["wall_ms"]]
        assert row["limit_ms"] == pytest.approx(row["bytes"] / 1e9, rel=1e-3)
        assert row["share"] == pytest.approx(row["limit_ms"] / row["wall_ms"], abs=1e-3)


def test_rows_of_prefill_and_of_training() -> None:
    for impl in (shapes.NN, shapes.EXACT):
        (row,) = measured(shapes.Job(shapes.PREFILL, shapes.HYBRID, impl, 1))
        assert row["over_forward"] == pytest.approx(row["wall_ms"] / row["forward_ms"], rel=1e-2)
    plain_row, exact = measured(shapes.Job(shapes.TRAIN, shapes.HYBRID, "", 2))
    assert (plain_row["impl"], exact["impl"]) == (shapes.NN, shapes.EXACT)
    assert exact["over_not_exact"] == pytest.approx(exact["wall_ms"] / plain_row["wall_ms"], rel=1e-2)


def test_only_warmed_up_tokens_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((10.0, 10.5))
    monkeypatch.setattr(generation_row.time, "perf_counter", lambda: next(clock))
    asked: list[int] = []

    def run(count: int, seen: Any) -> None:
        for number in range(count):
            asked.append(number)
            seen(number)

    own = impls.Generation("any", run, None, "")
    assert generation_row.token_ms(own, TINY) == 500 / TINY.tokens
    assert asked == list(range(TINY.warm_up + TINY.tokens))


def test_the_profiler_sees_only_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    inside: list[range] = []

    class Profile:
        def __init__(self, **_: Any) -> None:
            self.first = -1

        def start(self) -> None:
            self.first = asked[-1]

        def stop(self) -> None:
            inside.append(range(self.first, asked[-1]))

        def events(self) -> list[Namespace]:
            kernel, copied = Namespace(start=0.0, end=1000.0), Namespace(start=2000.0, end=5000.0)
            return [Namespace(time_range=one, device_type=DeviceType.CUDA) for one in (kernel, copied)]

    def run(count: int, seen: Any) -> None:
        for number in range(count):
            asked.append(number)
            seen(number)

    monkeypatch.setattr(generation_row, "profile", Profile)
    own = impls.Generation("any", run, None, "")
    assert generation_row.profiled_ms(own, FULL, shapes.MAMBA2) == 4 / FULL.profiled
    first = FULL.first_profiled(shapes.MAMBA2)
    assert inside == [range(first, first + FULL.profiled)]


def test_jobs_that_prepare_side_by_side_share_an_implementation() -> None:
    options = Namespace(
        passes=",".join(shapes.PASSES), models=",".join(shapes.MODELS), impls=";".join(shapes.IMPLS), batches=None
    )
    jobs = list(generate.jobs(options, FULL))
    groups = list(generate.groups(iter(jobs), 8))
    assert [job for group in groups for job in group] == jobs
    assert groups[0][0].which == shapes.LIMITS
    tokens = [{job.impl for job in group if job.which == shapes.TOKEN} for group in groups]
    assert all(len(impls) <= 1 for impls in tokens)
    assert sum(job.which == shapes.TOKEN for job in jobs) == 2 * sum(map(len, shapes.IMPLS.values()))
    assert all(len(group) <= 2 for group in groups if group[0].which == shapes.TRAIN)
    assert len(set(map(str, jobs))) == len(jobs)


def test_commands_that_fail_or_take_too_long_do_not_stop_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    said = 'print("noise"); print("ready", flush=True); input(); print(\'{"a": 1}\', flush=True)'
    commands = {
        "fails": ["-c", "raise RuntimeError('no peer')"],
        "good": ["-c", said],
        "hangs": ["-c", f"{said}; import time; time.sleep(100)"],
    }
    rows = list(own_process.side_by_side(commands, seconds=3))
    assert rows == [("fails", None), ("good", {"a": 1}), ("hangs", {"a": 1}), ("hangs", None)]
    errors = capfd.readouterr().err
    assert "no peer" in errors
    assert "hangs: failed" in errors


@pytest.mark.slow
def test_the_script_runs_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    script = [sys.executable, str(BENCHMARKS / "generate.py"), "--tiny", "--results", str(tmp_path), "--seconds", "0"]
    # The peers that are not there are one failed row.
    wanted = ["--models=mamba", "--impls=torch, graphs;transformers", "--batches=1", "--passes=token"]
    ran = subprocess.run([*script, *wanted, "--peers", str(tmp_path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "token mamba transformers B 1: failed" in ran.stderr
    rows = [json.loads(line) for line in (tmp_path / generate.ROWS).read_text().splitlines()]
    assert [(row["case"], row["impl"]) for row in rows] == [
        ("copy", "torch"),
        ("mamba", shapes.GRAPHS),
    ]
    assert all(row["share"] > 0 for row in rows[1:])
    assert {"commit", "date", "gpu", "versions", "op", "dtype", "pass", "framework"} <= rows[1].keys()
    assert ran.stdout.count("\n") == len(rows)
    assert (tmp_path / generate.ROWS).with_suffix(".png").exists()
