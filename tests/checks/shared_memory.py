"""Fills the GPU's shared memory with NaN before every launch.

A kernel that reads shared memory it has not written sees what an earlier kernel left there. Mostly these are finite
numbers, and a product with a weight of 0 hides them, until another process leaves a NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from retrograd.core.arch import KIB, Arch
from retrograd.core.program import Array, Launch, Program
from retrograd.core.torch.launch import Launcher, Runner

from .fill import ROW, WARPS, fill
from .interpreter import launched_by

# So many CTAs for each multiprocessor, each with all of its shared memory, that none is left out.
CTAS_EACH = 4
FOUND = "found_in_shared_memory"  # the array of what `fill` reads back


def filled(program: Program, arch: Arch, multiprocessors: int) -> Program:
    """The program with a launch of `fill` before each of its launches; all bits are 1, a NaN in each format."""
    grid = multiprocessors * CTAS_EACH
    before = Launch(
        fill,
        grid=grid,
        arrays={"found_ptr": FOUND},
        constants={"VALUE": -1, "ROWS": arch.shared_memory // KIB, "WARP_SIZE": arch.warp_size},
        num_warps=WARPS,
    )
    launches = tuple(launch for one in program.launches for launch in (before, one))
    return replace(program, scratch=(*program.scratch, Array(FOUND, (grid, ROW.value), "int32")), launches=launches)


class Filling(Launcher):
    """Runs programs with `fill` before each launch."""

    def prepare(
        self,
        program: Program,
        inputs: Sequence[str],
        outputs: Sequence[str | None],
        arch: Arch,
        device: torch.device,
    ) -> Runner:
        """The function that runs the program on tensors."""
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        return super().prepare(filled(program, arch, multiprocessors), inputs, outputs, arch, device)


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """A context in which every kernel starts with NaN in all of the shared memory."""
    with launched_by(Filling()):
        yield
