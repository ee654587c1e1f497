"""Compiles the kernels of calls before they are made, also on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..arch import SUPPORTED, Arch
from ..program import Array, Program
from .launch import DTYPES, Launcher, Runner, arch_of
from .passes import Launchers, forget_plans


class Collector(Launcher):
    """Collects the programs of calls on the meta device, which run nothing.

    Attributes:
        arch: the architecture for which they are planned.
        programs: what was collected.
    """

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.programs: list[Program] = []

    def arch_of(self, device: torch.device) -> Arch | None:
        """The architecture on the meta device."""
        return self.arch if device.type == "meta" else super().arch_of(device)

    def prepare(
        self,
        program: Program,
        inputs: Sequence[str],
        outputs: Sequence[str | None],
        arch: Arch,
        device: torch.device,
    ) -> Runner:
        """A function that returns tensors without memory."""
        if device.type != "meta":
            return super().prepare(program, inputs, outputs, arch, device)
        self.programs.append(program)
        returned = {array.name: array for array in program.returned}

        def run(_: Sequence[Any]) -> list[Any]:
            return [_empty(returned[name], device) if name in returned else None for name in outputs]

        return run

    def begin(self, programs: Sequence[Program], arch: Arch, device: torch.device) -> None:
        """Nothing, on the meta device: all is compiled in the end."""
        if device.type != "meta":
            super().begin(programs, arch, device)


def _empty(array: Array, device: torch.device) -> torch.Tensor:
    return torch.empty(array.shape, dtype=DTYPES[array.dtype], device=device)


def collect(function: Callable[..., Any], arguments: Sequence[Any], arch: Arch) -> list[Program]:
    """The programs of a function's calls of ops, and of the backward pass of its result."""
    usual = Launchers.current
    collector = Collector(arch)
    forget_plans()
    Launchers.current = collector
    try:
        results = on_meta(function)(*map(on_meta, arguments))
        reached = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        torch.autograd.backward(reached, [torch.empty_like(result) for result in reached])
    finally:
        Launchers.current = usual
        forget_plans()
    return collector.programs


def on_meta(value: Any) -> Any:
    """A module or nested tensors with the same shapes, strides and dtypes, and no memory; anything else as it is."""
    if isinstance(value, torch.nn.Module):
        tensors = (*value.parameters(), *value.buffers())
        return deepcopy(value, {id(tensor): _without_memory(tensor) for tensor in tensors})
    return tree_map(lambda leaf: _without_memory(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    data = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(data, tensor.requires_grad)
    return data.requires_grad_(tensor.requires_grad)


def warmup(function: Callable[..., Any], *arguments: Any, arch: str | None = None) -> int:
    """Compile, side by side on all cores, the kernels that a function and the backward pass of its result will run.

    Nothing is computed: the function runs once on stand-ins, tensors of the meta device with the shapes, strides and
    dtypes of the arguments and of the function's parameters, if it is a module. The binaries are then in Triton's cache
    (`TRITON_CACHE_DIR`, else `~/.triton/cache`), where this process finds them and every other with the same versions.
    Incoming gradients are taken to be dense. Call it before other threads call ops.

    Example::

        model = LanguageModel(MambaConfig(d_model=256, n_layer=4, vocab_size=256))  # of retrograd.nn
        tokens = torch.zeros(2, 512, dtype=torch.int64)
        retrograd.warmup(model, tokens, arch="sm_90")  # here, or when an image is built

    Args:
        function: a module, or any function of tensors, such as one of this package. What it reads of tensors other than
            its arguments has to be on the meta device. Its results, tensors in lists, tuples and dicts, get a gradient
            where they need one; a training step may also return nothing and call `backward` itself.
        arguments: its arguments, on any device; what is nested in lists, tuples and dicts counts.
        arch: the architecture to compile for, such as "sm_90", on a machine with or without a GPU; that of the current
            GPU by default.

    Returns:
        The number of kernels launched by the programs of all passes.

    Raises:
        ValueError: the architecture is unknown, or there is no GPU and none is named.
        RuntimeError: the function needs values of tensors.
    """
    from ..build import begin, build

    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    here = None if device is None else arch_of(device)
    target = here if arch is None else SUPPORTED.get(arch)
    if target is None:
        raise ValueError(f"warmup: arch is {arch!r}, expected one of {', '.join(SUPPORTED)}")
    index = device.index if device is not None and target == here else None
    programs = collect(function, arguments, target)
    begin(programs, target, index)
    launches = [(launch, program.arrays) for program in programs for launch in program.launches if launch.grid]
    for launch, arrays in launches:
        build(launch, arrays, target, index)
    return len(launches)
