"""The program of each pass: which kernels run, in which order, on which arrays. The same for PyTorch and JAX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from triton.experimental.gluon import language as gl

from retrograd.core.arch import Arch
from retrograd.core.program import ALIGNMENT, Array, Descriptor, Launch, Layout, Layouts, Program
from retrograd.core.spec import Param, Pass

from ..arrays import Tiles
from ..op import Spec
from ..passes import Launches, Operand, Product, inputs_of
from .arrays import Operands, Sizes
from .few_rows import few_rows
from .plan import FEW_COLUMNS, FEW_REGISTERS, GROUP, MULTIPROCESSORS, Few, Plan, Tile, planned
from .product import product as product_kernel

__all__ = ["backward", "forward", "planned", "suits"]

BITS = 16
UNIT = ALIGNMENT * 8 // BITS  # elements of which rows have to be a multiple, for tensor descriptors


def suits(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether the kernels support the architecture and the dtype, and rows are what tensor descriptors can have."""
    if arch.name != "sm_90" or not arch.copies_tensors or spec.x.dtype not in ("bfloat16", "float16"):
        return False
    return 0 not in (spec.rows, spec.N, spec.K) and spec.N % UNIT == 0 and spec.K % UNIT == 0


def forward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """x, the weight and the bias -> y."""
    inputs, layouts = inputs_of(spec, names, layouts, _described)
    return _Launches(spec, layouts, arch, plan.parts, plan).forward(inputs, outputs)


def backward(
    spec: Spec, names: tuple[str, ...], outputs: tuple[Array, ...], layouts: Layouts, arch: Arch, plan: Plan
) -> Program:
    """dy, x and the weight -> the wanted gradients."""
    inputs, layouts = inputs_of(spec, names, layouts, _described)
    return _Launches(spec, layouts, arch, plan.parts, plan).backward(inputs, outputs)


def _described(name: str, param: Param, layout: Layout) -> bool:
    """Whether a tensor descriptor can have these strides."""
    *rows, column = layout.strides
    return layout.aligned and column == 1 and all(stride > 0 and stride % UNIT == 0 for stride in rows)


@dataclass(frozen=True)
class _Launches(Launches):
    """Builds the launches of a pass."""

    plan: Plan

    def rows(self, product: Product) -> Launch:
        """Computes y or dx."""
        if self.plan.few:
            return self._few_rows(product, self.plan.few)
        return self._product(product, self.plan.rows)

    def weight(self, product: Product) -> Launch:
        """Computes the gradient of the weight, or parts of it."""
        return self._product(product, self.plan.weight, self.parts)

    def _product(self, product: Product, tile: Tile, parts: int = 1) -> Launch:
        count = -(-product.rows // tile.rows) * -(-product.columns // tile.columns) * parts
        descriptors = {
            "a": self._operand(product.a, product.rows, product.terms, tile.rows // 2, tile.terms),
            "b": self._operand(product.b, product.columns, product.terms, tile.columns, tile.terms),
        }
        arrays: dict[str, str | None] = {
            "a": product.a.name,
            "b": product.b.name,
            "bias_ptr": product.bias,
            "out": product.out if parts == 1 else None,
            "partial_ptr": product.out if parts > 1 else None,
        }
        if parts == 1:
            block = (tile.rows // 2, tile.columns // 2)
            descriptors["out"] = _descriptor((product.rows, product.columns), product.columns, block)
        sizes = Sizes(product.rows, product.columns, product.terms, -(-product.terms // (tile.terms * parts)))
        return self._launch(
            product_kernel,
            min(count, MULTIPROCESSORS),
            arrays,
            descriptors,
            scalars={"sizes": sizes, "count": count},
            constants={
                "TILES": Tiles(tile.rows, tile.columns, tile.terms, GROUP),
                "OPERANDS": Operands(product.a.transposed, product.b.transposed, tile.stages),
            },
        )

    def _few_rows(self, product: Product, few: Few) -> Launch:
        descriptors = {
            "a": self._operand(product.a, product.rows, product.terms, few.rows, few.terms),
            "b": self._operand(product.b, product.columns, product.terms, FEW_COLUMNS, few.terms),
        }
        launch = self._launch(
            few_rows,
            -(-product.columns // FEW_COLUMNS) * -(-product.rows // few.rows),
            {"a": product.a.name, "b": product.b.name, "bias_ptr": product.bias, "out_ptr": product.out},
            descriptors,
            scalars={"sizes": Sizes(product.rows, product.columns, product.terms, 0)},
            constants={
                "FEW": few.rows,
                "OPERANDS": Operands(False, product.b.transposed, few.stages),
                "EARLY": False,
            },
        )
        return replace(launch, max_registers=FEW_REGISTERS, early=product.b.name)

    def _launch(
        self,
        kernel: Any,
        grid: int,
        arrays: dict[str, str | None],
        descriptors: dict[str, Descriptor],
        scalars: dict[str, Any],
        constants: dict[str, Any],
    ) -> Launch:
        overlap = self.arch.overlaps_launches
        return Launch(
            kernel,
            grid=grid,
            arrays=arrays,
            descriptors=descriptors,
            scalars=scalars,
            constants={**constants, "OVERLAP": overlap},
            num_warps=4,
            overlap=overlap,
        )

    def _operand(self, operand: Operand, rows: int, terms: int, block_rows: int, block_terms: int) -> Descriptor:
        matrix = self.matrix(operand)
        if operand.transposed:
            return _descriptor((terms, rows), matrix.column, (block_terms, block_rows))
        return _descriptor((rows, terms), matrix.row, (block_rows, block_terms))


def _descriptor(shape: tuple[int, int], row: int, block: tuple[int, int]) -> Descriptor:
    """The descriptor of a matrix whose rows lie at a stride, in swizzled blocks."""
    width = min(128, block[1] * BITS // 8)
    return Descriptor(shape, (row, 1), block, gl.NVMMASharedLayout(width, BITS, rank=2))
