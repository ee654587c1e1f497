"""Shared by the implementations: the sums of the backward kernels' partial sums."""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch
from retrograd.core.kernels.reduce import sum_blocks_launch, sum_rows_launch
from retrograd.core.program import Array, Launch
from retrograd.core.spec import Param

from .op import Spec

FP32 = "float32"


@dataclass(frozen=True)
class Unfinished:
    """The arrays that backward kernels write beside the wanted gradients, and the launches that sum them to gradients.

    The kernels compute all gradients: a kernel without one would be another binary, in which the compiler fuses other
    multiplications with additions, and a gradient's bits would depend on which others are wanted.

    Attributes:
        spec: the call.
        outputs: the wanted gradients.
        blocks: programs that share the channels of a step; each writes its partial sum of dB and dC.
        summands: partial sums over time, of sequences or pieces of them.
    """

    spec: Spec
    outputs: tuple[Array, ...]
    blocks: int
    summands: int

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Partial sums over channels, (steps, blocks, B and C, N), and over time, (summands, the gradient's shape);
        then the gradients that are not wanted."""
        spec, matrices = self.spec, self._matrices
        shapes = {f"d{name}_partial": (self.summands, *param.shape) for name, param in self._summed.items()}
        if matrices:
            steps = spec.batch * spec.time
            shapes = {"dBC_partial": (steps, self.blocks, len(matrices), spec.N), **shapes}
        wanted = {array.name for array in self.outputs}
        unwanted = spec.params(f"d{n}" for n in ("x", "dt", "z", "initial_state") if f"d{n}" not in wanted)
        return (
            *(Array(name, shape, FP32) for name, shape in shapes.items()),
            *(Array(name, param.shape, param.dtype) for name, param in unwanted.items()),
        )

    def launches(self, arch: Arch) -> tuple[Launch, ...]:
        """Partial sums -> gradients."""
        spec, matrices = self.spec, self._matrices
        wanted = {array.name for array in self.outputs}
        steps = spec.batch * spec.time
        launches = []
        for part, name in enumerate(matrices):
            if (out := f"d{name}") in wanted:
                groups = spec.groups(name)
                each = self.blocks // groups
                launches.append(
                    sum_blocks_launch("dBC_partial", out, steps, groups, each, spec.N, arch, part, len(matrices))
                )
        for name, param in self._summed.items():
            if (out := f"d{name}") in wanted:
                columns = spec.channels * (spec.N if len(param.shape) == 2 else 1)
                launches.append(sum_rows_launch(f"{out}_partial", out, self.summands, columns, arch))
        return tuple(launches)

    @property
    def _matrices(self) -> list[str]:
        """Those of B and C that have a time axis, in the order of the kernels' partial sums."""
        return [name for name in ("C", "B") if not self.spec.constant(name)]

    @property
    def _summed(self) -> dict[str, Param]:
        """The arguments without a time axis, whose gradients are summed over time."""
        constant = (name for name in ("B", "C") if self.spec.constant(name))
        return self.spec.params(("A", "D", "dt_bias", *constant))
