"""The program of each pass: its launches and their arrays, the same for PyTorch and JAX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.program import Array, Launch, Layouts, Program, Scalar, Strides, read_in_place, strides_of
from retrograd.core.spec import Pass, places_of

from ..op import Spec
from . import backward as backward_kernels
from . import forward as forward_kernels
from .arrays import Heads, Pairs
from .plan import Tile, columns, planned

__all__ = ["backward", "forward", "planned", "suits"]


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels take the dtypes; there are no gradients of bias, slopes and sinks yet."""
    plain = spec.bias is None and spec.alibi_slopes is None and spec.sinks is None
    return spec.q.dtype in KERNEL_FLOATS and (which == "fwd" or plain)


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile
) -> Program:
    """The arguments -> out, lse."""
    inputs, layouts = read_in_place(spec.params(names), layouts, lambda *_: True)
    outputs = tuple(replace(array, zeroed=spec.packed) for array in outputs)  # steps of no sequence
    own = _Launches(spec, inputs + outputs, layouts, arch, tile)
    launch = own.launch(forward_kernels.forward, own.tiles("q", tile.queries) * spec.batch * spec.heads)
    return Program(inputs, outputs, (), (launch,))


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, tile: Tile
) -> Program:
    """The gradients of the results, the arguments, out and lse -> the wanted gradients, in two loops."""
    inputs, layouts = read_in_place(spec.params(names), layouts, lambda *_: True)
    outputs = tuple(replace(array, zeroed=spec.packed) for array in outputs)
    scratch = (Array("delta", (spec.batch, spec.heads, spec.queries), "float32"),)
    own = _Launches(spec, inputs + outputs + scratch, layouts, arch, tile)
    wanted = {array.name for array in outputs}
    launches = [own.deltas()]
    if wanted & {"dk", "dv"}:
        grid = own.tiles("k", tile.keys) * spec.batch * spec.groups
        launches.append(own.launch(backward_kernels.keys_backward, grid))
    if "dq" in wanted:
        grid = own.tiles("q", tile.queries) * spec.batch * spec.heads
        launches.append(own.launch(backward_kernels.queries_backward, grid))
    return Program(inputs, outputs, scratch, tuple(launches))


# Parameter -> array, where the names differ.
NAMES = {
    "slopes": "alibi_slopes",
    "seed_ptr": "dropout_seed",
    "cu_q_ptr": "cu_seqlens_q",
    "cu_k_ptr": "cu_seqlens_k",
}
ROWS = ("lse", "dlse", "delta")  # arrays (batch, heads, queries)


@dataclass(frozen=True)
class _Launches:
    """Builds the launches of a pass."""

    spec: Spec
    arrays: tuple[Array, ...]
    layouts: Layouts
    arch: Arch
    tile: Tile

    def tiles(self, side: str, size: int) -> int:
        """The number of tiles of queries or keys of a row."""
        time = self.spec.queries if side == "q" else self.spec.keys
        return places_of(time, size, self.spec.sequences if self.spec.packed else None)

    def deltas(self) -> Launch:
        """Computes the gradient at the sum of exponentials of every query."""
        spec = self.spec
        constants = {"V": spec.value_size, "BLOCK_V": columns(spec.value_size)}
        scalars: dict[str, Scalar] = {"rows": spec.queries, "heads": spec.heads}
        return self._of(backward_kernels.deltas, -(-spec.queries // 64) * spec.batch * spec.heads, scalars, constants)

    def launch(self, kernel: Any, grid: int) -> Launch:
        """A launch over tiles of pairs."""
        spec = self.spec
        D, V = spec.head_size, spec.value_size
        share = spec.heads // max(spec.groups, 1)
        constants = {
            "SIDES": spec.sides,
            "FACTOR": spec.factor,
            "DROPPED": spec.threshold,
            "COLUMNS": (D, V, columns(D), columns(V)),
            "BLOCK_Q": self.tile.queries,
            "BLOCK_K": self.tile.keys,
        }
        sizes = (spec.queries, spec.keys, spec.heads, share, spec.sequences)
        return self._of(kernel, grid, {"sizes": sizes}, constants)

    def _of(self, kernel: Any, grid: int, scalars: dict[str, Scalar], constants: dict[str, Any]) -> Launch:
        present = {array.name: strides_of(array.name, array.shape, self.layouts) for array in self.arrays}
        parameters = [name for name in kernel.arg_names if name not in scalars and not name.isupper()]
        arrays = {name: NAMES.get(name, name) for name in parameters}
        return Launch(
            kernel,
            grid=grid,
            arrays={name: array if array in present else None for name, array in arrays.items()},
            strided={
                name: self._strides(array, present.get(array))
                for name, array in arrays.items()
                if not name.endswith("_ptr")
            },
            scalars=scalars,
            constants={**constants, "OVERLAP": self.arch.overlaps_launches},
            num_warps=self.tile.num_warps,
            num_stages=self.tile.num_stages,
            overlap=self.arch.overlaps_launches,
        )

    def _strides(self, name: str, own: Strides | None) -> Heads | Pairs:
        """The strides of an array as the kernels take them; zeros for an absent one."""
        if name == "bias":
            shape = self.spec.bias.shape if self.spec.bias else (1, 1, 1, 1)
            shared = zip(shape, own or (0, 0, 0, 0), strict=True)
            return Pairs(None, *(0 if size == 1 else stride for size, stride in shared))
        if own is None:
            return Heads(None, 0, 0, 0, 0)
        if name in ROWS:
            return Heads(None, own[0], own[2], own[1], 0)
        if name == "alibi_slopes":
            return Heads(None, own[0] if len(own) == 2 else 0, 0, own[-1], 0)
        if name == "sinks":
            return Heads(None, 0, 0, own[0], 0)
        batch, step, head, column = own
        return Heads(None, batch, step, head, column)
