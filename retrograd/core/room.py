"""What a room tells the house about itself: the contract, the benchmarks and the command line know no more of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from .arch import Arch
from .cases import Case
from .op import Op, Param
from .program import Program

Pass = Literal["fwd", "bwd"]


@dataclass(frozen=True)
class Room:
    """One op, complete.

    Attributes:
        name: the op's name.
        arguments: its array arguments, in the order of the public function; the first is positional.
        batch_axis: argument -> the axis along which independent rows lie, for the arguments that have one; an argument
            of size 1 there serves every row.
        cases: the named shapes.
        torch: the public PyTorch function.
        jax: loads jax and returns the public JAX function.
        reference: the definition, plain PyTorch.
        plain: what sets the error budget, where the reference in the case's dtypes does not round as any kernel has to.
        programs: a case's forward and backward program on an architecture, needs no GPU; None where the portable path
            is taken.
        bytes_moved: the fewest bytes a case's pass moves through device memory.
        flops: a case's floating-point operations.
        exps: a case's exponentials, where they may be what bounds it.
        time_axis: argument -> the axis of time, for an op that looks along it. Its first result has batch and time
            where its first argument has them; every other result is a state: one entry a sequence along its first axis.
        sequence_axis: argument -> the axis with one entry a sequence: the batch's, or as long as there are sequences
            where `cu_seqlens` cuts a batch of one into several.
        continues: a sequence in two calls, the second from the state of the first, has the bits of the whole where the
            cut is at a multiple of so many steps; 0 where it has not.
        update: the public PyTorch function for one step of generation, where there is one: arguments have no time, and
            `state` stands for `initial_state`.
        jax_update: loads jax and returns the public JAX function for it.
        gradients_only: layouts of `testing.layouts` in which inputs say nothing about errors, so that the incoming
            gradients alone are laid out.
        structures: name -> a context within which calls are planned to run by another sequence of kernels. A plan may
            choose among them by the size of the batch, because they give the same bits.
        tensor_core_sums: whether sums of 16-bit inputs may pass tensor cores, which keep 11 bits of each term.
    """

    name: str
    arguments: tuple[str, ...]
    batch_axis: dict[str, int]
    cases: Sequence[Case]
    torch: Callable[..., Any]
    jax: Callable[[], Callable[..., Any]]
    reference: Callable[..., Any]
    programs: Callable[[Case, Arch], tuple[Program, Program] | None]
    bytes_moved: Callable[[Case, Pass], int]
    flops: Callable[[Case, Pass], int]
    exps: Callable[[Case, Pass], int] | None = None
    plain: Callable[..., Any] | None = None
    time_axis: Mapping[str, int] = field(default_factory=dict)
    sequence_axis: Mapping[str, int] = field(default_factory=dict)
    continues: int = 0
    update: Callable[..., Any] | None = None
    jax_update: Callable[[], Callable[..., Any]] | None = None
    gradients_only: frozenset[str] = frozenset()
    structures: Mapping[str, Callable[[], AbstractContextManager[None]]] = field(default_factory=dict)
    tensor_core_sums: bool = False

    @classmethod
    def of(cls, op: Op, package: str, **rest: Any) -> Room:
        """The room of an op whose specs tell the cost of a pass; `rest` is what `op` does not know.

        Args:
            op: the op.
            package: the room's; its module `jax_op` has the JAX functions under the names of the PyTorch ones.
            rest: the other attributes.
        """

        def of_jax(name: str) -> Any:
            return getattr(import_module(f"{package}.jax_op"), name)

        update = rest.get("update")

        def programs(case: Case, arch: Arch) -> tuple[Program, Program] | None:
            """With dense inputs, all gradients wanted."""
            spec = spec_of(op, case)
            forward = op.forward(spec).program({}, arch)
            backward = op.backward(spec, frozenset(case.inputs).difference(op.indices)).program({}, arch)
            return None if forward is None or backward is None else (forward, backward)

        return cls(
            name=op.name,
            arguments=op.arguments,
            jax=lambda: of_jax(op.name),
            jax_update=None if update is None else lambda: of_jax(update.__name__),
            programs=programs,
            bytes_moved=lambda case, which: spec_of(op, case).bytes_moved(which),
            flops=lambda case, which: spec_of(op, case).flops(which),
            **rest,
        )

    def case(self, name: str) -> Case:
        """The case of that name."""
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(f"{self.name} has no case {name!r}")

    def stands_for_others(self, case: Case) -> bool:
        """Whether a case is among those on which many variations of a call are tried; see `Case.tags`."""
        return "strided" in case.tags or not self.tagged("strided")

    def tagged(self, *tags: str) -> list[Case]:
        """The cases that carry any of the tags."""
        return [case for case in self.cases if case.tags.intersection(tags)]


def spec_of(op: Op, case: Case) -> Any:
    """The spec of a case."""
    return op.spec({name: Param(tensor.shape, tensor.dtype) for name, tensor in case.inputs.items()}, case.options)
