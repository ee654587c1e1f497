"""Kernels that are compiled before calls need them: those of both passes, for a GPU that is not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from checks.interpreter import launched_by
from checks.programs import binary

import retrograd
from retrograd.core import build
from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.program import Launch, Program
from retrograd.core.torch.warmup import Collector, collect, on_meta
from retrograd.nn import RMSNorm
from retrograd.ops.infos import NAMES, info

ARCH = SUPPORTED["sm_90"]


class Watching(Collector):
    """Notes the programs that calls begin to compile before they need them."""

    def __init__(self, arch: Arch) -> None:
        super().__init__(arch)
        self.begun: list[Program] = []

    def begin(self, programs: Sequence[Program], arch: Arch, device: torch.device) -> None:
        self.begun.extend(programs)


def binaries(programs: Sequence[Program]) -> set[Any]:
    return {binary(program, launch) for program in programs for launch in program.launches if launch.grid}


def test_a_forward_call_begins_the_binaries_that_its_backward_pass_needs() -> None:
    """On the small cases of every op, for results with dense gradients."""
    compared = 0
    for name in NAMES:
        for case in (case for case in info(name).cases if "strided" in case.tags):
            watching = Watching(ARCH)
            with launched_by(watching):
                tensors = {
                    key: torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")
                    for key, tensor in case.inputs.items()
                }
                for tensor in tensors.values():
                    tensor.requires_grad_(tensor.is_floating_point() or tensor.is_complex())
                options = {
                    key: getattr(torch, value) if key.endswith("dtype") and value else value
                    for key, value in case.options.items()
                }
                found = getattr(retrograd, name)(**tensors, **options)
                found = [result for result in (found if isinstance(found, tuple) else (found,)) if result is not None]
                torch.autograd.backward(found, [torch.empty_like(result) for result in found])
            needed = binaries(watching.programs)
            assert binaries(watching.begun) == needed, f"{name}, {case.name}"
            compared += len(needed)
    assert compared


def test_a_call_without_gradients_begins_no_backward_pass() -> None:
    watching = Watching(ARCH)
    a = torch.empty(2, 40, 16, device="meta", requires_grad=True)
    with launched_by(watching):
        with torch.no_grad():
            retrograd.linear_scan(a, a)
        retrograd.linear_scan(a.detach(), a.detach())
    assert len(watching.programs) == 1
    assert not watching.begun


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of Triton, and a process that has compiled nothing."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    build._compiled.forget()
    yield tmp_path
    build._compiled.forget()


def test_warmup_compiles_both_passes_of_a_model_into_the_cache(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), RMSNorm(8))
    x = torch.randn(4, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert retrograd.warmup(model, x, arch="sm_90") > 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert list(empty_cache.rglob("*.cubin"))

    launches = [(p, one) for p in collect(model, [x], ARCH) for one in p.launches]
    kernels = {one.kernel.__module__.rpartition(".")[2] for _, one in launches}
    assert kernels >= {"forward", "backward"}
    build._compiled.forget()  # as in another process
    monkeypatch.setattr(triton.compiler.compiler.ASTSource, "make_ir", _refuse)
    for program, launch in launches:
        build.build(launch, program.arrays, ARCH)


def _refuse(*_: Any) -> None:
    raise AssertionError("a binary is compiled again")


def test_calls_after_warmup_compute_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build", _nothing)
    monkeypatch.setattr(build, "begin", _nothing)
    x = torch.randn(4, 8, requires_grad=True)
    y = retrograd.rms_norm(x)
    retrograd.warmup(retrograd.rms_norm, x, arch="sm_90")
    assert torch.equal(retrograd.rms_norm(x), y)
    assert x.grad is None


def _nothing(*_: Any) -> None:
    pass


def test_a_training_step_may_call_backward_itself() -> None:
    x = on_meta(torch.randn(4, 8, requires_grad=True))

    def step() -> None:
        retrograd.rms_norm(x).sum().backward()

    assert len(collect(step, [], ARCH)) == 2


def test_an_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="arch is 'sm_1', expected one of sm_80, sm_90"):
        retrograd.warmup(retrograd.rms_norm, torch.ones(2, 8), arch="sm_1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_an_architecture_has_to_be_named() -> None:
    with pytest.raises(ValueError, match="arch is None, expected one of"):
        retrograd.warmup(retrograd.rms_norm, torch.ones(2, 8))


def test_a_binary_that_fails_is_an_error_of_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(launch: Launch, *_: Any) -> None:
        raise RuntimeError(launch.kernel.__name__)

    monkeypatch.setattr(build, "build", fails)
    monkeypatch.setattr(build, "begin", _nothing)
    with pytest.raises(RuntimeError, match="forward"):
        retrograd.warmup(retrograd.rms_norm, torch.ones(2, 8), arch="sm_90")
