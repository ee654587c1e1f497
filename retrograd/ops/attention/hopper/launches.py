"""The launches of the Hopper kernels of attention, and the calls that they support."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import e, log2

from triton.experimental.gluon import language as gl

from retrograd.core.arch import Arch
from retrograd.core.program import Array, Descriptor, Launch, Layout, Layouts, Program, read_in_place
from retrograd.core.spec import Param, Pass, places_of

from ..op import Spec
from ..triton.launches import LEAST_FACTOR, Launches
from . import forward as forward_kernels
from . import tiles as tile_kernels
from .plan import TUNED, Plan, planned

__all__ = ["forward", "planned", "suits"]

PLACE = tile_kernels.PLACE.value


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the architecture, the dtype, the sizes of a head and the scale of a call."""
    if arch.name != "sm_90" or which == "bwd" or spec.q.dtype not in ("bfloat16", "float16"):
        return False
    if spec.head_size != spec.value_size or spec.head_size not in TUNED or spec.factor <= LEAST_FACTOR:
        return False
    return 0 not in spec.q.shape and 0 not in spec.k.shape


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """The arguments -> out, lse."""

    def in_place(name: str, param: Param, layout: Layout) -> bool:
        if name not in ("q", "k", "v"):
            return True
        one = Array(name, param.shape, param.dtype, aligned=layout.aligned)
        return Launches(spec, (one,), {name: layout}, arch).described(name, 1) is not None

    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    # Steps before the first packed sequence, and behind the last, have tiles, too.
    tiles = places_of(spec.queries, 2 * plan.queries, spec.sequences + 2 if spec.packed else None)
    counter = Array("counter", (1,), "int32", zeroed=True)
    scratch = (counter, *((Array("places", (tiles, PLACE), "int32"),) if spec.packed else ()))
    own = _Launches(Launches(spec, inputs + outputs + scratch, layouts, arch), plan, tiles)
    return Program(inputs, outputs, scratch, (*own.list_places(), own.forward()))


@dataclass(frozen=True)
class _Launches:
    """Builds the launches of a pass."""

    of: Launches
    plan: Plan
    tiles: int

    def list_places(self) -> tuple[Launch, ...]:
        """Lists where the tiles of packed sequences are."""
        spec = self.of.spec
        if not spec.packed:
            return ()
        sizes = (spec.queries, spec.keys, spec.sequences)
        constants = {"BLOCK": 2 * self.plan.queries}
        return (self.of.launch(tile_kernels.list_places, self.tiles, {"sizes": sizes}, constants),)

    def forward(self) -> Launch:
        """Computes out and lse."""
        spec, plan = self.of.spec, self.plan
        steps = {"q": plan.queries, "k": plan.keys, "v": plan.keys, "out": plan.queries}
        rows, share = spec.batch * spec.heads, spec.heads // spec.groups
        bytes_of_group = 2 * spec.keys * (spec.head_size + spec.value_size)
        section = share * max(1, self.plan.section // bytes_of_group)
        sizes = (spec.queries, spec.keys, spec.heads, share, self.tiles, rows, section)
        factors: tuple[float | None, float | None, float] = (None, None, spec.factor * log2(e))
        if spec.softcap is not None:
            factors = (spec.factor / spec.softcap, spec.softcap * log2(e), 1.0)
        constants = {
            "SIDES": self.of.sides(),
            "FACTORS": factors,
            "QUERIES": plan.queries,
            "KEYS": plan.keys,
            "STAGES": plan.stages,
            "REGISTERS": plan.registers,
        }
        descriptors = {name: self._described(name, size) for name, size in steps.items()}
        grid = min(rows * self.tiles, plan.programs)
        launch = self.of.launch(forward_kernels.forward, grid, {"sizes": sizes}, constants, descriptors)
        return replace(launch, num_warps=4, allowed_spills=plan.spills)

    def _described(self, name: str, steps: int) -> Descriptor:
        found = self.of.described(name, steps)
        assert found is not None, name
        return replace(found, layout=gl.NVMMASharedLayout(128, 16, rank=len(found.block)))
