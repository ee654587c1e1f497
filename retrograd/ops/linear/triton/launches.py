"""The program of each pass: which kernels run, in which order, on which arrays. The same for PyTorch and JAX."""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.program import Array, Launch, Layouts, Program
from retrograd.core.spec import Pass

from ..arrays import Tiles
from ..op import Spec
from ..passes import Launches, Product, inputs_of
from .plan import GROUP, Plan, Tile, planned, warps
from .product import product as product_kernel

__all__ = ["backward", "forward", "planned", "suits"]


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the dtype, and no axis is empty."""
    return spec.x.dtype in KERNEL_FLOATS and 0 not in (spec.rows, spec.N, spec.K)


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """x, the weight and the bias -> y."""
    inputs, layouts = inputs_of(spec, names, layouts)
    return _Launches(spec, layouts, arch, plan.parts, plan).forward(inputs, outputs)


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """dy, x and the weight -> the wanted gradients."""
    inputs, layouts = inputs_of(spec, names, layouts)
    return _Launches(spec, layouts, arch, plan.parts, plan).backward(inputs, outputs)


@dataclass(frozen=True)
class _Launches(Launches):
    """Builds the launches of a pass."""

    plan: Plan

    def rows(self, product: Product) -> Launch:
        """Computes y or dx."""
        return self._product(product, self.plan.rows)

    def weight(self, product: Product) -> Launch:
        """Computes the gradient of the weight, or parts of it."""
        return self._product(product, self.plan.weight, sums_rows=True)

    def _product(self, product: Product, tile: Tile, sums_rows: bool = False) -> Launch:
        overlap = self.arch.overlaps_launches
        parts = self.parts if sums_rows else 1
        other = product.rows if sums_rows else product.terms
        return Launch(
            product_kernel,
            grid=-(-product.rows // tile.rows) * -(-product.columns // tile.columns) * parts,
            arrays={"a": product.a.name, "b": product.b.name, "bias_ptr": product.bias, "out_ptr": product.out},
            strided={"a": self.matrix(product.a), "b": self.matrix(product.b)},
            scalars={"M": self.spec.rows, "other": other, "columns": product.columns, "parts": parts},
            constants={
                "TILES": Tiles(tile.rows, tile.columns, tile.terms, GROUP),
                "SUMS_ROWS": sums_rows,
                "OVERLAP": overlap,
            },
            num_warps=warps(tile, self.arch),
            num_stages=tile.stages,
            overlap=overlap,
        )
