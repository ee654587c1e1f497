"""The program of each pass where each channel of K has a decay of its own. The same for PyTorch and JAX."""

from __future__ import annotations

from dataclasses import replace

from retrograd.core.arch import Arch
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.program import Array, Launch, Layouts, Program, read_in_place
from retrograd.core.spec import Pass

from ...op import Spec
from ...rates import finish_rates
from ..launches import FP32, Launches, in_place, places, prepared, states_of, walked
from ..plan import Tile
from . import gradients as gradient_kernels
from .plan import planned
from .prepare import prepare_channels
from .rows import channel_rows

__all__ = ["backward", "forward", "planned", "suits"]

SPILLS = 5  # of `channel_gradients`


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the dtypes, channels have decays of their own, and v is not empty."""
    return spec.v.dtype in KERNEL_FLOATS and spec.of_channels and 0 not in spec.v.shape


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile
) -> Program:
    """The arguments -> o, final_state and the saved states."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    scratch = (*prepared(spec, tile), *_rows(spec, tile), *walked(spec, tile))
    of = _ChannelLaunches(spec, inputs + outputs + scratch, layouts, arch, tile)
    launches = (
        *of.normalize(),
        of.rows(),
        of.prepare(),
        of.forward_states(start="initial_state", last="final_state"),
        of.outputs(),
    )
    return Program(inputs, outputs, scratch, launches)


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile
) -> Program:
    """The gradients of the results, the arguments and the saved states -> the wanted gradients."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    scratch = (*prepared(spec, tile), *_rows(spec, tile), *walked(spec, tile), *_backward_scratch(spec, tile, outputs))
    of = _ChannelLaunches(spec, inputs + outputs + scratch, layouts, arch, tile)
    launches = (
        *of.normalize(),
        of.rows(),
        of.rates() if spec.keeps_pairs else of.prepare(),
        of.forward_states(start="states", from_kept=True),
        of.backward_states(),
        of.channel_pairs(),
        of.gradients(),
        of.finish(),
        *of.through_norm(),
    )
    return Program(inputs, outputs, scratch, launches)


def _rows(spec: Spec, tile: Tile) -> tuple[Array, ...]:
    """The scratch arrays of rows with decays, and of the decays."""
    sums = (places(spec, tile.steps), spec.heads, tile.steps, spec.K)
    rows = (Array(name, spec.g.shape, spec.v.dtype) for name in ("q_grow", "k_grow", "k_rest"))
    return Array("sums", sums, FP32), *rows


def _backward_scratch(spec: Spec, tile: Tile, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """The other scratch arrays of the backward pass, with the unwanted gradients, as for one decay a head."""
    slots, heads, steps = places(spec, tile.steps), spec.heads, tile.steps
    wanted = {array.name for array in outputs}
    alike = spec.params(("dq", "dk", "dv", "dg", "dbeta", "dinitial_state"))
    return (
        states_of("leaving", spec, tile),
        Array("dv_rows", spec.v.shape, spec.v.dtype),
        Array("pairs", (slots, 2 * heads, steps, steps), spec.v.dtype),
        Array("own", (slots, heads, steps), FP32),
        Array("parts", (slots, heads * tile.key_blocks(spec), steps), FP32),
        *(Array(f"d{name}_unit", spec.q.shape, FP32) for name in "qk" if spec.normalize_qk),
        *(Array(name, param.shape, param.dtype) for name, param in alike.items() if name not in wanted),
    )


class _ChannelLaunches(Launches):
    """Builds the launches of a pass: those that differ from one decay a head."""

    def rows(self) -> Launch:
        """Computes the sums of log decays, and the rows of q and k with decays."""
        spec, tile = self.spec, self.tile
        grid = places(spec, tile.steps) * spec.heads * tile.key_blocks(spec)
        names = "cu_seqlens sums q_grow k_grow k_rest"
        keys = {"q": self._keys("q"), "k": self._keys("k"), "g": "g"}
        return self._launch(channel_rows, grid, names, keys, num_warps=tile.num_warps)

    def prepare(self) -> Launch:
        """Computes the inverses and the scores of queries."""
        return self._prepare(pairs=True)

    def rates(self) -> Launch:
        """Writes beta alone, where the others are saved."""
        return self._prepare(pairs=False)

    def _prepare(self, *, pairs: bool) -> Launch:
        names = "sums cu_seqlens vectors"
        grid = places(self.spec, self.tile.steps) * self.spec.heads
        keys: dict[str, str | None] = {"q": self._keys("q"), "k": self._keys("k"), "beta": "beta"}
        keys |= {f"{name}_ptr": name if pairs else None for name in ("inverse", "scores")}
        return self._launch(prepare_channels, grid, names, keys, num_warps=self.tile.prepare_warps)

    def channel_pairs(self) -> Launch:
        """Computes what pairs of steps within a block contribute to gradients, without their decays; and dv."""
        grid = places(self.spec, self.tile.steps) * self.spec.heads
        names = "dv_rows written cu_seqlens pairs own dv"
        kernel = gradient_kernels.channel_pairs
        return self._launch(kernel, grid, names, {"dout": "do"}, num_warps=self.tile.pair_warps)

    def gradients(self) -> Launch:
        """Computes the gradients of q, k and g, and that of beta in parts."""
        spec, tile = self.spec, self.tile
        grid = places(spec, tile.steps) * spec.key_heads * tile.key_blocks(spec)
        names = "vectors sums written dv_rows entering leaving pairs own cu_seqlens dg parts"
        out = {f"d{name}_ptr": f"d{name}_unit" if spec.normalize_qk else f"d{name}" for name in "qk"}
        kernel = gradient_kernels.channel_gradients
        launch = self._launch(kernel, grid, names, {**self._queries, **out}, num_warps=tile.state_warps)
        return replace(launch, allowed_spills=SPILLS)

    def finish(self) -> Launch:
        """Computes the gradient of beta."""
        spec, tile = self.spec, self.tile
        return Launch(
            finish_rates,
            grid=places(spec, tile.steps) * -(-spec.heads // tile.heads),
            arrays=self._pointers(finish_rates, "parts cu_seqlens dbeta"),
            scalars={"call": self._call},
            constants={
                "C": tile.steps,
                "PARTS": tile.key_blocks(spec),
                "HEADS": tile.heads,
                "OVERLAP": self.arch.overlaps_launches,
            },
            num_warps=4,
            overlap=self.arch.overlaps_launches,
        )
