"""The plan for long rows, streamed through shared memory: a pure function of the spec and the architecture."""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch

from ..op import Spec

SHORTEST = 8192  # columns; rows up to this are held in registers
LONGEST = 32_768
CHUNK = 4096
PROGRAMS = 132
BARRIERS = 2048  # bytes of shared memory left for the reductions


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of shared memory through which long rows are streamed.

    Attributes:
        chunk: columns that are copied, read and refilled together.
        stages: rows (forward) or chunks (backward) in the ring.
        shared: chunks of the weight in shared memory; the others stay in registers.
        num_warps: warps per program.
        programs: programs that share the rows.
    """

    chunk: int
    stages: int
    shared: int
    num_warps: int
    programs: int


def forward(spec: Spec, arch: Arch) -> Ring:
    """Rows of x in the ring: as many as fit."""
    chunks = -(-spec.N // CHUNK)
    stages = (arch.shared_memory - BARRIERS) // (chunks * CHUNK * 2)
    return Ring(CHUNK, min(stages, 8), 0, 16, PROGRAMS)


def backward(spec: Spec, arch: Arch) -> Ring:
    """Chunks of s and dy in the ring, at least a row of each; the remaining space holds the weight."""
    chunks = -(-spec.N // CHUNK)
    space = (arch.shared_memory - BARRIERS) // (CHUNK * 4)  # a stage, and a chunk of the weight in fp32
    shared = min(chunks, space - chunks)
    return Ring(CHUNK, space - shared, shared, 16, PROGRAMS)
