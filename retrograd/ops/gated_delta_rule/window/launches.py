"""The program of an exact step: the op's own program on a window, after its rows are written, before one is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from retrograd.core.arch import Arch
from retrograd.core.kernels.window import take_row
from retrograd.core.program import Array, Launch, Layout, Layouts, Program, pointers_to, read_in_place, renamed
from retrograd.core.rows import is_dense, row_of
from retrograd.core.spec import Param, Pass

from ..op import BORDER, OP, Spec
from ..steps import Overwriting
from .append import append

COPIED = 1024  # numbers of each row that a program copies
ROWS = ("q", "k", "v", "g", "beta")
# The op's arrays -> those of the step.
NAMES = {"q": "queries", "initial_state": "window_state", "o": "rows"} | {
    name: f"window_{name}" for name in ROWS if name != "q"
}


class Call(NamedTuple):
    """Heads, key heads, and the programs of a sequence: on these no binary depends."""

    H: Any
    G: Any
    parts: Any


class Taken(NamedTuple):
    """Numbers of a row of results and of a sequence's state, and the programs of a sequence."""

    row: Any
    state: Any
    parts: Any


class Sizes(NamedTuple):
    """Channels of a key and of a value, log decays of a head, steps of a window."""

    K: int
    V: int
    DECAYS: int
    BORDER: int


def suits(spec: Overwriting, arch: Arch, which: Pass) -> bool:
    """Whether kernels run the op on such steps, so that a row has their bits."""
    return which == "fwd" and OP.implementation(of_window(spec), arch, which) is not None


def planned(spec: Overwriting, arch: Arch, which: Pass) -> None:
    """There is nothing to plan."""


def of_window(spec: Overwriting) -> Spec:
    """The call of the op on the steps of a block."""

    def steps(param: Param) -> Param:
        return Param((param.shape[0], BORDER, *param.shape[1:]), param.dtype)

    q, k, v, g, beta = map(steps, (spec.q, spec.k, spec.v, spec.g, spec.beta))
    options: dict[str, Any] = {"scale": spec.scale, "normalize_qk": spec.normalize_qk, "return_final_state": True}
    return Spec(q=q, k=k, v=v, g=g, beta=beta, initial_state=spec.window_state, **options)


def forward(
    spec: Overwriting, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: None
) -> Program:
    """The arguments -> o and the steps since the border; the window's arrays are overwritten."""
    inputs, layouts = read_in_place(spec.params(names), layouts, in_place)
    block = OP.forward(of_window(spec)).program({}, arch)
    assert block is not None  # `suits` has said so
    queries, *_ = block.inputs
    own = tuple(
        replace(array, name=NAMES.get(array.name, array.name)) for array in (queries, *block.outputs, *block.scratch)
    )
    arrays = (*inputs, *outputs, *own)
    launches = (
        _append(spec, arrays, layouts, arch),
        *(renamed(launch, NAMES) for launch in block.launches),
        _take_row(spec, arrays, arch),
    )
    return Program(inputs, outputs, own, launches)


def in_place(name: str, param: Param, layout: Layout) -> bool:
    """Whether the kernels read an array without a copy. A window is always dense: what is written shall stay."""
    if name in ROWS:
        return len(param.shape) == 2 or layout.strides[2] == 1
    return is_dense(param.shape, layout.strides)


def _append(spec: Overwriting, arrays: tuple[Array, ...], layouts: Layouts, arch: Arch) -> Launch:
    (batch, heads, V), (groups, K) = spec.v.shape, spec.q.shape[1:]
    decays = K if len(spec.g.shape) == 3 else 1
    parts = -(-max(groups * K, heads * V, heads * decays) // COPIED)
    names = "window_k window_v window_g window_beta queries"
    rows = {name: name for name in ROWS}
    pointers = pointers_to(arrays, names, steps_ptr="window_steps", next_ptr="steps", **rows)
    return Launch(
        append,
        grid=batch * parts,
        arrays={name: pointers[name] for name in append.arg_names if name in pointers},
        strided={name: row_of(name, spec[name], layouts) for name in ROWS},
        scalars={"call": Call(heads, groups, parts)},
        constants={"SIZES": Sizes(K, V, decays, BORDER), "BLOCK": COPIED, "OVERLAP": arch.overlaps_launches},
        overlap=arch.overlaps_launches,
    )


def _take_row(spec: Overwriting, arrays: tuple[Array, ...], arch: Arch) -> Launch:
    batch, heads, V = spec.v.shape
    row, state = heads * V, heads * V * spec.q.shape[2]
    parts = -(-state // COPIED)
    others = {"steps_ptr": "window_steps", "last_ptr": "final_state", "state_ptr": "window_state", "row_ptr": "o"}
    pointers = pointers_to(arrays, "rows", **others)
    return Launch(
        take_row,
        grid=batch * parts,
        arrays={name: pointers[name] for name in take_row.arg_names if name in pointers},
        scalars={"sizes": Taken(row, state, parts)},
        constants={"BORDER": BORDER, "BLOCK": COPIED, "OVERLAP": arch.overlaps_launches},
        overlap=arch.overlaps_launches,
    )
