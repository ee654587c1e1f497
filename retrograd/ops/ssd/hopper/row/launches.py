"""The launches of a step in place, and the calls that its kernels support."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.kernels.sequences import Heads
from retrograd.core.program import Array, Launch, Layout, Layouts, Program, pointers_to, read_in_place
from retrograd.core.rows import is_dense, row_of
from retrograd.core.spec import Param, Pass

from ...arrays import Call, Groups, Skip
from ...op import Spec
from ...steps import Overwriting
from .. import launches as hopper
from ..blocks import WIDEST
from ..plan import STEPS
from ..prepare import prepare
from .append import append
from .arrays import Sizes
from .row import CHANNELS, VECTORS, row

WARPS = 8  # of `row`; see `wrong_descriptors` in the tests for what becomes of 4
COPIED = 1024  # numbers of a row that a program of `append` copies
PREPARED_HEADS = hopper.PREPARED_HEADS  # as in training: sums of log decays then have the same bits


def suits(spec: Overwriting, arch: Arch, which: Pass) -> bool:
    """Whether the Hopper kernels run `ssd` on such steps, so that a row has their bits."""
    return which == "fwd" and hopper.suits(of_window(spec), arch, which)


def planned(spec: Overwriting, arch: Arch, which: Pass) -> None:
    """There is nothing to plan."""


def of_window(spec: Overwriting) -> Spec:
    """The call of `ssd` on the steps of a block."""

    def steps(param: Param) -> Param:
        return Param((param.shape[0], STEPS, *param.shape[1:]), param.dtype)

    x, dt, B, C = map(steps, (spec.x, spec.dt, spec.B, spec.C))
    options: dict[str, Any] = {"dt_softplus": spec.dt_softplus, "dt_limit": spec.dt_limit}
    return Spec(x=x, dt=dt, A=spec.A, B=B, C=C, D=spec.D, dt_bias=spec.dt_bias, **options)


def forward(
    spec: Overwriting, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: None
) -> Program:
    """The arguments -> y and the steps since the border; the window's arrays are overwritten."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    batch, heads = spec.x.shape[:2]
    scratch = (
        Array("vectors", (batch, heads, VECTORS.value, STEPS), "float32"),
        Array("delta", (batch, heads, STEPS), "float32"),
    )
    of = _Launches(spec, of_window(spec), (*inputs, *outputs, *scratch), layouts, arch)
    return Program(inputs, outputs, scratch, (of.append(), of.prepare(), of.row()))


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether the kernels read an array without a copy. A window is always dense: what is written shall stay."""
    if name in ("x", "B", "C"):
        return layout.strides[2] == 1
    return name == "dt" or is_dense(param.shape, layout.strides)


@dataclass(frozen=True)
class _Launches:
    """Builds the launches.

    Attributes:
        spec: the call.
        window: the call of `ssd` on the window.
        arrays: all arrays.
        layouts: of those that are not dense.
        arch: the architecture.
    """

    spec: Overwriting
    window: Spec
    arrays: tuple[Array, ...]
    layouts: Layouts
    arch: Arch

    def append(self) -> Launch:
        """Writes the step's rows into the window."""
        parts = -(-max(self.spec.x.shape[1] * self.window.P, self.window.groups * self.window.N) // COPIED)
        names = "window_x window_B window_dt"
        arrays = self._pointers(names, x="x", B="B", dt="dt", steps_ptr="window_steps", next_ptr="steps")
        return self._launch(
            append,
            self.window.batch * parts,
            {name: arrays[name] for name in append.arg_names if name in arrays},
            {name: row_of(name, self.spec[name], self.layouts) for name in ("x", "B", "dt")},
            {"groups": self._groups, "parts": parts},
            SIZES=self._sizes,
            BLOCK=COPIED,
        )

    def prepare(self) -> Launch:
        """Computes the vectors of the block."""
        heads, window = self.window.heads, self.window
        arrays = self._pointers("A dt_bias cu_seqlens vectors delta", dt="window_dt")
        return self._launch(
            prepare,
            window.batch * -(-heads // PREPARED_HEADS),
            {name: arrays[name] for name in prepare.arg_names if name in arrays},
            {"dt": Heads(None, STEPS * heads, heads, 1)},
            {"call": Call(STEPS, window.batch, *window.limits), "H": heads},
            Q=STEPS,
            BLOCKS=1,
            BLOCK_H=PREPARED_HEADS,
        )

    def row(self) -> Launch:
        """Computes y and, at a border, the state."""
        arrays = self._pointers(
            "window_x window_B vectors", C="C", D="D", steps_ptr="window_steps", state_ptr="window_state", out_ptr="y"
        )
        wide = self.spec.D is not None and len(self.spec.D.shape) == 2
        launch = self._launch(
            row,
            self.window.batch * self.window.heads * (self.window.P // CHANNELS.value),
            {name: arrays[name] for name in row.arg_names if name in arrays},
            {
                "C": row_of("C", self.spec.C, self.layouts),
                "D": Skip(None, self.window.P if wide else 1, 1 if wide else 0),
            },
            {"groups": self._groups},
            SIZES=self._sizes,
        )
        return replace(launch, num_warps=WARPS)

    def _pointers(self, names: str, **others: str | None) -> dict[str, str | None]:
        return pointers_to(self.arrays, names, **others)

    @property
    def _groups(self) -> Groups:
        return Groups(self.window.heads, self.window.groups)

    @property
    def _sizes(self) -> Sizes:
        return Sizes(self.window.P, self.window.N, STEPS, min(self.window.N, WIDEST.value))

    def _launch(self, kernel: Any, grid: int, arrays: Any, strided: Any, scalars: Any, **constants: Any) -> Launch:
        return Launch(
            kernel,
            grid=grid,
            arrays=arrays,
            strided=strided,
            scalars=scalars,
            constants={**constants, "OVERLAP": self.arch.overlaps_launches},
            overlap=self.arch.overlaps_launches,
        )
