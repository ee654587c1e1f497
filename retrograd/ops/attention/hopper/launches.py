"""The launches of the Hopper kernels of attention, and the calls that they support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import e, log2
from typing import Any

from triton.experimental.gluon import language as gl

from retrograd.core.arch import Arch
from retrograd.core.program import Array, Descriptor, Launch, Layout, Layouts, Program, layouts_of, read_in_place
from retrograd.core.spec import Param, Pass, places_of

from ..op import Spec
from ..triton.launches import LEAST_FACTOR, Launches
from ..triton.plan import columns
from . import backward as backward_kernels
from . import forward as forward_kernels
from . import rows as row_kernels
from . import tiles as tile_kernels
from .plan import BackwardPlan, ForwardPlan, has_tiles, planned

__all__ = ["backward", "forward", "planned", "suits"]

PLACE = tile_kernels.PLACE.value


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the architecture, the dtype, the sizes of a head, the scale, and in the backward pass the
    algorithm, and no softcap.
    """
    if arch.name != "sm_90" or not arch.copies_tensors or spec.q.dtype not in ("bfloat16", "float16"):
        return False
    # "split" promises to need no workspace; the gradient of a softcap takes more registers than there are.
    if which == "bwd" and (spec.backward == "split" or spec.softcap is not None):
        return False
    if not has_tiles(spec) or spec.factor <= LEAST_FACTOR:
        return False
    return 0 not in spec.q.shape and 0 not in spec.k.shape


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: ForwardPlan
) -> Program:
    """The arguments -> out, lse."""
    inputs, layouts = _read(spec, names, layouts, arch)
    # Steps before the first packed sequence, and behind the last, have tiles, too.
    tiles = places_of(spec.queries, plan.groups * plan.queries, spec.sequences + 2 if spec.packed else None)
    counter = Array("counter", (1,), "int32", zeroed=True)
    scratch = (counter, *((Array("places", (tiles, PLACE), "int32"),) if spec.packed else ()))
    own = _Launches(Launches(spec, inputs + outputs + scratch, layouts, arch))
    listed = own.list_places("q", "k", tiles, plan.groups * plan.queries)
    return Program(inputs, outputs, scratch, (*listed, own.forward(plan, tiles)))


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: BackwardPlan
) -> Program:
    """The gradients of the results, the arguments, out and lse -> the wanted gradients."""
    inputs, layouts = _read(spec, names, layouts, arch)
    wanted = {array.name for array in outputs}
    walked = bool(wanted & {"dq", "dk", "dv"})
    tiles = places_of(spec.keys, plan.keys, spec.sequences + 2 if spec.packed else None)
    tiles_q = places_of(spec.queries, plan.queries, spec.sequences if spec.packed else None)
    rows = spec.batch * spec.heads * tiles_q
    steps = rows * plan.queries
    scratch = [Array("base", (steps,), "float32"), Array("delta", (steps,), "float32")]
    if "dsinks" in wanted:
        scratch.append(Array("dsinks_partial", (spec.batch * tiles_q, spec.heads), "float32"))
    if walked:
        params = spec.params(("q", "k", "v"))
        scratch += [Array("counter", (1,), "int32", zeroed=True), Array("turns", (rows,), "int32", zeroed=True)]
        scratch += [Array("dq_sum", (steps, columns(spec.head_size)), "float32")]
        scratch += [Array(f"d{n}", params[n].shape, params[n].dtype) for n in "kv" if f"d{n}" not in wanted]
        scratch += [Array("places", (tiles, PLACE), "int32")] if spec.packed else []
    own = _Launches(Launches(spec, inputs + outputs + tuple(scratch), {**layouts, **layouts_of(outputs)}, arch))
    launches = [own.prepare(plan, tiles_q)]
    if walked:
        launches += [*own.list_places("k", "q", tiles, plan.keys), own.backward(plan, tiles, tiles_q)]
    if "dq" in wanted:
        launches.append(own.finish(plan, tiles_q))
    if "dsinks" in wanted:
        launches.append(own.of.sum_tiles("dsinks", plan.queries))
    return Program(inputs, outputs, tuple(scratch), tuple(launches))


def _read(spec: Spec, names: tuple[str, ...], layouts: Layouts, arch: Arch) -> tuple[tuple[Array, ...], Layouts]:
    """The arrays that a pass reads; those that tensor descriptors cannot take are copied before."""

    def in_place(name: str, param: Param, layout: Layout) -> bool:
        if name not in ("q", "k", "v", "dout"):
            return True
        one = Array(name, param.shape, param.dtype, aligned=layout.aligned)
        return Launches(spec, (one,), {name: layout}, arch).described(name, 1) is not None

    return read_in_place(spec.params(names), layouts, in_place)


@dataclass(frozen=True)
class _Launches:
    """Builds the launches of a pass."""

    of: Launches

    def list_places(self, own: str, other: str, tiles: int, steps: int) -> tuple[Launch, ...]:
        """Lists where the tiles of packed queries are, or of keys; `own` and `other` are "q" and "k"."""
        spec = self.of.spec
        if not spec.packed:
            return ()
        time = {"q": spec.queries, "k": spec.keys}
        sizes = (time[own], time[other], spec.sequences)
        arrays = {"cu_ptr": f"cu_seqlens_{own}", "other_ptr": f"cu_seqlens_{other}"}
        launch = self.of.launch(tile_kernels.list_places, tiles, {"sizes": sizes}, {"BLOCK": steps})
        return (replace(launch, arrays={**launch.arrays, **arrays}),)

    def forward(self, plan: ForwardPlan, tiles: int) -> Launch:
        """Computes out and lse."""
        spec = self.of.spec
        steps = {"q": plan.queries, "k": plan.keys, "v": plan.keys, "out": plan.queries}
        rows, share = spec.batch * spec.heads, spec.heads // spec.groups
        bytes_of_group = 2 * spec.keys * (spec.head_size + spec.value_size)
        section = min(rows, share * max(1, plan.section // bytes_of_group))
        sizes = (spec.queries, spec.keys, spec.heads, share, tiles, rows, section)
        constants = {
            "SIDES": self.of.sides(),
            "FACTORS": self._factors(),
            "QUERIES": plan.queries,
            "KEYS": plan.keys,
            "STAGES": plan.stages,
            "GROUPS": plan.groups,
            "REGISTERS": plan.registers,
        }
        grid = min(rows * tiles, plan.programs)
        launch = self.of.launch(forward_kernels.forward, grid, {"sizes": sizes}, constants, self._described(steps))
        return replace(launch, num_warps=4, allowed_spills=plan.spills)

    def prepare(self, plan: BackwardPlan, tiles: int) -> Launch:
        """Computes the numbers of queries that the walk reads, and parts of the gradient of sinks."""
        V = self.of.spec.value_size
        return self._of_rows(row_kernels.prepare, plan, tiles, {"V": V, "BLOCK_V": columns(V)})

    def finish(self, plan: BackwardPlan, tiles: int) -> Launch:
        """Rounds the sums of dq."""
        D = self.of.spec.head_size
        constants = {"SCALE": self.of.spec.factor, "D": D, "BLOCK_D": columns(D)}
        return self._of_rows(row_kernels.finish, plan, tiles, constants)

    def _of_rows(self, kernel: Any, plan: BackwardPlan, tiles: int, constants: dict[str, Any]) -> Launch:
        spec = self.of.spec
        sizes = (spec.queries, spec.heads, tiles, spec.sequences)
        constants = {**constants, "BLOCK": plan.queries}
        return self.of.launch(kernel, spec.batch * spec.heads * tiles, {"sizes": sizes}, constants)

    def backward(self, plan: BackwardPlan, tiles: int, tiles_q: int) -> Launch:
        """Computes dk, dv and the sums of dq."""
        spec = self.of.spec
        blocks = {"q": plan.queries, "dout": plan.queries} | dict.fromkeys(("k", "v", "dk", "dv"), plan.keys)
        D, rows, share = columns(spec.head_size), spec.batch * spec.groups, spec.heads // spec.groups
        steps = spec.batch * spec.heads * tiles_q * plan.queries
        of_rows = Descriptor((steps,), (1,), (plan.queries,), gl.NVMMASharedLayout(0, 32, rank=1))
        sums = Descriptor((steps, D), (D, 1), (plan.queries, D), gl.NVMMASharedLayout(128, 32, rank=2))
        descriptors = {**self._described(blocks), "base": of_rows, "delta": of_rows, "dq_sum": sums}
        bytes_of_group = share * spec.queries * (2 * spec.head_size + 2 * spec.value_size + 4 * D)
        section = min(rows, max(1, plan.section // bytes_of_group))
        sizes = (spec.queries, spec.keys, spec.heads, tiles, tiles_q, rows, section)
        constants = {
            "SIDES": self.of.sides(),
            "FACTORS": self._factors(),
            "SCALE": spec.factor,
            "SHARE": share,
            "KEYS": plan.keys,
            "QUERIES": plan.queries,
            "STAGES": plan.stages,
            "SLOTS": plan.slots,
            "AHEAD": plan.ahead,
            "REGISTERS": plan.registers,
        }
        launch = self.of.launch(backward_kernels.backward, rows * tiles, {"sizes": sizes}, constants, descriptors)
        return replace(launch, num_warps=4, allowed_spills=plan.spills)

    def _factors(self) -> tuple[float | None, float | None, float]:
        """FACTORS of the kernels, see `forward`."""
        spec = self.of.spec
        if spec.softcap is not None:
            return spec.factor / spec.softcap, spec.softcap * log2(e), 1.0
        return None, None, spec.factor * log2(e)

    def _described(self, steps: Mapping[str, int]) -> dict[str, Descriptor]:
        """The descriptors of arrays, in blocks of so many steps."""
        found = {name: self.of.described(name, size) for name, size in steps.items()}
        assert None not in found.values(), found
        return {
            name: replace(own, layout=gl.NVMMASharedLayout(128, 16, rank=len(own.block)))
            for name, own in found.items()
            if own
        }
