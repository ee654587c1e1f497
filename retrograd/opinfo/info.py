"""The record of an op: all that the contract, the benchmarks and the command line know about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from importlib import import_module
from types import FunctionType
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.declaration import Argument, Result, alternatives
from retrograd.core.op import Op, Replan, differentiable
from retrograd.core.program import Program
from retrograd.core.spec import CallSpec, Param, Pass, arguments, options

from .cases import Case, other_values


@dataclass(frozen=True)
class OpInfo:
    """The record of one op.

    Attributes:
        name: the op's name.
        arguments: its array arguments, in the order of the public function; the first is positional.
        batch_axis: argument -> the axis of independent rows, for the arguments that have one; an argument of size 1
            along it is shared by all rows.
        cases: the named shapes.
        torch: the public PyTorch function.
        jax: loads jax and returns the public JAX function.
        reference: the definition, plain PyTorch.
        plain: the function whose errors set the error budget, where the reference, run in the case's dtypes, lacks
            roundings that no kernel can avoid.
        programs: a case's forward and backward program on an architecture, needs no GPU; None where either pass runs
            on the portable path.
        bytes_moved: the fewest bytes a case's pass moves through device memory.
        flops: a case's floating-point operations.
        exps: a case's exponentials, where they may limit its speed.
        time_axis: argument or result -> its axis of time, for an op with one or, like attention, two times. Results
            have the names of `testing.draw`: `y`, `output 1`, .... An array with two axes of time is not listed.
        bounds: argument or result -> the boundaries of packed sequences along its axis of time; `cu_seqlens` if it is
            not listed.
        sequence_axis: argument -> the axis with one entry per sequence: of the size of the batch, or, where
            `cu_seqlens` cuts a batch of one into several sequences, of their number.
        alone: whether, in a case, a row of a batch and a packed sequence have the bits that they have alone.
        causal: whether, in a case, the first steps of all arrays alone have the bits that they have in the whole.
        continues: a sequence cut at a multiple of this many steps into two calls, the second from the final state of
            the first, has the same bits as in one call; 0 where no cut keeps the bits.
        update: the public PyTorch function for one step of generation, where there is one: arguments have no time axis,
            and `initial_state` is called `state`.
        jax_update: loads jax and returns the public JAX function for one step of generation.
        gradients_only: layouts of `testing.layouts` that the contract applies only to incoming gradients, because
            inputs in these layouts do not test errors.
        structures: name -> a function from the info to a variant planned to run another sequence of kernels. A plan may
            choose among these sequences by the size of the batch, because they have the same bits.
        draws: how often each case is drawn at least, to judge its errors: more than once where a few rows have the
            largest ones.
        tensor_core_sums: whether sums of 16-bit inputs may use tensor cores, which keep 11 bits of each term.
        label: the implementation's name in benchmark rows.
        op: the op that its functions call; None in some infos that test the contract itself.
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
    bounds: Mapping[str, str] = field(default_factory=dict)
    alone: Callable[[Case], bool] = lambda case: True
    causal: Callable[[Case], bool] = lambda case: True
    continues: int = 0
    update: Callable[..., Any] | None = None
    jax_update: Callable[[], Callable[..., Any]] | None = None
    gradients_only: frozenset[str] = frozenset()
    structures: Mapping[str, Callable[[OpInfo], OpInfo]] = field(default_factory=dict)
    draws: int = 1
    tensor_core_sums: bool = False
    label: str = "retrograd"
    op: Op | None = None

    @classmethod
    def of(cls, op: Op, cases: Sequence[Case], **rest: Any) -> OpInfo:
        """The `OpInfo` of an op; `rest` has the other attributes that do not follow from `op`.

        An option that no case sets gets a case of its own: the first case with another value of the option.

        The public functions are in the modules `torch_functions` and `jax_functions` next to the op's package.
        """
        package = op.package.rpartition(".")[0]
        (update,) = op.functions.get("update", (None,))

        def of_torch(name: str) -> Any:
            return public_function(f"{package}.torch_functions", name)

        def of_jax(name: str) -> Any:
            return public_function(f"{package}.jax_functions", name)

        declared = arguments(op.call)
        axes = {letter: _axes(declared, letter) for letter in ("batch", "B", "S")}
        derived = {
            "torch": of_torch(op.name),
            "jax": lambda: of_jax(op.name),
            "update": update and of_torch(update),
            "jax_update": update and (lambda: of_jax(update)),
            "batch_axis": axes["batch"] | axes["B"] | axes["S"],
            "sequence_axis": axes["S"],
            **_times(op),
        }
        return cls(
            name=op.name,
            op=op,
            arguments=op.arguments,
            cases=[*cases, *_untried(op, cases)],
            **_costs(op),
            **(derived | rest),
        )

    def variant(
        self, only: str | None = None, replan: Replan | None = None, call: type[CallSpec] | None = None
    ) -> OpInfo:
        """The `OpInfo` with a variant of its op; the variant's functions take plain arrays, outside of tracing.

        Args:
            only: the only implementation to keep; calls that it does not take run on the portable path.
            replan: maps an implementation's plan to the one to use instead.
            call: another declaration.
        """
        assert self.op is not None
        op = self.op.only(only) if only else self.op
        op = replace(op, replan=replan or op.replan, call=call or op.call)

        def rebound(function: Any, bind: Callable[[Op], Any]) -> Any:
            return _rebound(function, {f"_{op.name}": bind(op)})

        def in_jax(load: Callable[[], Any]) -> Callable[[], Any]:
            return lambda: rebound(load(), import_module("retrograd.core.jax.op").bind)

        unregistered = import_module("retrograd.core.torch.op").bind_unregistered
        return replace(
            self,
            op=op,
            label=f"{self.label}.{only}" if only else self.label,
            torch=rebound(self.torch, unregistered),
            jax=in_jax(self.jax),
            update=self.update and rebound(self.update, unregistered),
            jax_update=self.jax_update and in_jax(self.jax_update),
            **_costs(op),
        )

    def case(self, name: str) -> Case:
        """The case of that name."""
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(f"{self.name} has no case {name!r}")

    def is_representative(self, case: Case) -> bool:
        """Whether a case is used for tests with many variations of a call; see `Case.tags`."""
        return "strided" in case.tags or not self.tagged("strided")

    def tagged(self, *tags: str) -> list[Case]:
        """The cases that carry any of the tags."""
        return [case for case in self.cases if case.tags.intersection(tags)]


def public_function(module: str, name: str) -> Any:
    """A public function; where `make functions` has not written it yet, one that says so."""

    def unwritten(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{module} has no {name}: `make functions` writes it from the declaration")

    return getattr(import_module(module), name, unwritten)


def spec_of(op: Op, case: Case) -> Any:
    """The spec of a case."""
    return op.spec({name: Param(tensor.shape, tensor.dtype) for name, tensor in case.inputs.items()}, case.options)


def _untried(op: Op, cases: Sequence[Case]) -> Iterator[Case]:
    """The first case with another value of each option that no case sets, under the option's name."""
    tried = {name for case in cases for name in case.options}
    for name, option in options(op.call).items():
        if name not in tried:
            (value, *_) = other_values(option, option.default)
            yield replace(cases[0], name=name, options={**cases[0].options, name: value})


def _costs(op: Op) -> dict[str, Any]:
    """The attributes of an `OpInfo` that describe an op's passes."""

    def programs(case: Case, arch: Arch) -> tuple[Program, Program] | None:
        """The programs for dense inputs and for the gradients of all arguments."""
        spec = spec_of(op, case)
        forward = op.forward(spec).program({}, arch)
        backward = op.backward(spec, frozenset(case.inputs) & differentiable(op)).program({}, arch)
        return None if forward is None or backward is None else (forward, backward)

    return {
        "programs": programs,
        "bytes_moved": lambda case, which: spec_of(op, case).bytes_moved(which),
        "flops": lambda case, which: spec_of(op, case).flops(which),
        "exps": (lambda case, which: spec_of(op, case).exps(which)) if hasattr(op.call, "exps") else None,
    }


def _times(op: Op) -> dict[str, dict[str, str] | dict[str, int]]:
    """The attributes of an `OpInfo` that describe axes of time: those along which boundaries cut sequences."""
    declared = arguments(op.call)
    bounds = {argument.reaches: name for name, argument in declared.items() if argument.reaches}
    results = {"y" if i == 0 else f"output {i}": result for i, result in enumerate(op.call.results)}
    found = [(name, letter, axis) for letter in bounds for name, axis in _axes({**declared, **results}, letter).items()]
    names = [name for name, _, _ in found]
    once = [(name, letter, axis) for name, letter, axis in found if names.count(name) == 1]
    return {
        "time_axis": {name: axis for name, _, axis in once},
        "bounds": {name: bounds[letter] for name, letter, _ in once},
    }


def _axes(declared: Mapping[str, Argument | Result], letter: str) -> dict[str, int]:
    """Array -> its axis of a letter, for arrays with the letter in some alternative of their shape."""
    found: dict[str, int] = {}
    for name, argument in declared.items():
        for axes in alternatives(argument.shape):
            places = [place for place, axis in enumerate(axes) if axis.letter == letter and not axis.offset]
            if places:
                found.setdefault(name, places[0])
    return found


def _rebound(function: Any, names: Mapping[str, Any]) -> Any:
    """A copy of a function in which these global names have other values."""
    scope = {**function.__globals__, **names}
    new = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    new.__kwdefaults__ = function.__kwdefaults__
    return update_wrapper(new, function)
