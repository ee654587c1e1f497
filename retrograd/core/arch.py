"""What a plan may depend on: properties of a GPU architecture, never of one particular card."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget

KIB = 1024


@dataclass(frozen=True, slots=True)
class Arch:
    """A GPU architecture, as used by plans.

    Attributes:
        name: the compiler's name, such as `sm_90` or `gfx942`.
        backend: Triton's backend.
        warp_size: threads that run in lockstep.
        shared_memory: bytes of shared memory that one CTA may use.
        overlaps_launches: whether a kernel may be launched while the previous one drains (programmatic dependent
            launch).
        copies_tensors: whether a tensor memory accelerator copies blocks of tensors by descriptors.
    """

    name: str
    backend: Literal["cuda", "hip"]
    warp_size: int
    shared_memory: int
    overlaps_launches: bool = False
    copies_tensors: bool = False

    @property
    def target(self) -> GPUTarget:
        """The target that `triton.compile` takes; it needs no GPU."""
        from triton.backends.compiler import GPUTarget

        arch = int(self.name.removeprefix("sm_")) if self.backend == "cuda" else self.name
        return GPUTarget(self.backend, arch, self.warp_size)


# Every kernel is built and checked for these five.
SUPPORTED: dict[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch("sm_80", "cuda", 32, 163 * KIB),
        Arch("sm_90", "cuda", 32, 227 * KIB, overlaps_launches=True, copies_tensors=True),
        Arch("sm_100", "cuda", 32, 227 * KIB, overlaps_launches=True, copies_tensors=True),
        Arch("gfx942", "hip", 64, 64 * KIB),
        Arch("gfx950", "hip", 64, 160 * KIB),
    )
}


def nvidia(major: int, minor: int) -> Arch | None:
    """The architecture of an NVIDIA compute capability, or None where the kernels do not run."""
    name = f"sm_{major}{minor}"
    if name in SUPPORTED:
        return SUPPORTED[name]
    if major < 8:
        return None
    # Consumer chips (8.6, 8.9, 12.x) have only 99 KiB of shared memory per CTA.
    return replace(SUPPORTED["sm_80"], name=name, shared_memory=99 * KIB)


def amd(gcn_arch: str) -> Arch | None:
    """The architecture of an AMD `gcnArchName` such as `gfx942:sramecc+:xnack-`, or None where it is not supported."""
    match = re.match(r"gfx\w+", gcn_arch)
    return SUPPORTED.get(match[0]) if match else None
