"""An op: its declaration, its portable path and its implementations, independent of the framework.

`core.torch.op` turns it into a registered operator with a derivative, `core.jax.op` into a JAX primitive with one;
neither contains mathematics of an op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol

from .arch import Arch
from .program import Array, Launch, Layouts, Part, Program
from .spec import CallSpec, Fold, Params, Pass, arguments, bounded, options, with_gradients
from .xp import Namespace

# Maps an implementation's plan to the plan to use instead; see `Op.replan`.
Replan = Callable[[Any], Any]


class Call(Protocol):
    """One pass of a checked call. Hashable: equal calls share one compilation."""

    def __hash__(self) -> int: ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arrays that it reads, in order.

        A backward pass reads the gradient of a result under the name `d<result>`, unless the result is not returned to
        the user. Everything else that it reads is an argument of the op or an output of its forward pass, by its name.
        """

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The arrays that it computes, the same on every path and every architecture.

        In a backward pass, the gradient of an argument is named `d<argument>`.
        """

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The launches that read `inputs` and compute `outputs`; None where the portable path has to run."""

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs by name, from the inputs by name, without a kernel."""


def names(text: str) -> frozenset[str]:
    """The names in a text, separated by spaces."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Implementation:
    """Kernels for some of an op's calls.

    Its package has a module `launches` with these functions, where `which` is the pass:

    - `suits(spec, arch, which)`: whether the kernels run this call, all of whose arguments and options are in `takes`.
    - `planned(spec, arch, which)`: the plan: tile sizes and the like, as one value.
    - `forward` and `backward(spec, inputs, outputs, layouts, arch, plan)`: the program. The launches need not name the
      options: a kernel's constant with an option's name, in capitals, gets its value, and so does a parameter with the
      name of a float option.

    That module is imported only when a call is planned, because it imports the kernels and so Triton.

    Attributes:
        package: the name of its package.
        takes: the arguments and options that its kernels support. A call with any other argument, or with a non-default
            value of any other option, is passed on to the next implementation.
        places: the outputs that its launches write by the strides of `program.layouts_of`, and that may so be parts of
            a larger array.
    """

    package: str
    takes: frozenset[str]
    places: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.package.rpartition(".")[2]

    def has(self, spec: CallSpec, arch: Arch, which: Pass) -> bool:
        """Whether it runs this pass of the call on the architecture."""
        return spec.uses <= self.takes and self._launches.suits(spec, arch, which)

    def program(
        self,
        spec: CallSpec,
        which: Pass,
        inputs: tuple[str, ...],
        outputs: tuple[Array, ...],
        layouts: Layouts,
        arch: Arch,
        replan: Replan | None,
    ) -> Program:
        """The program of a pass; `replan`, if not None, changes the plan first."""
        plan = self._launches.planned(spec, arch, which)
        if replan is not None:
            plan = replan(plan)
        schedule = self._launches.forward if which == "fwd" else self._launches.backward
        program: Program = schedule(spec, inputs, outputs, layouts, arch, plan)
        launches = tuple(_with_options(launch, spec) for launch in program.launches)
        for launch in launches:
            launch.check_values()
        return replace(program, launches=launches)

    @property
    def _launches(self) -> Any:
        return import_module(f"{self.package}.launches")


class Function(NamedTuple):
    """A function that calls an op with other arguments, such as a step of generation.

    Attributes:
        call: its declaration.
        run: `run(xp, op, arrays, options)` returns its results, on either framework: from the framework's array
            functions, the function that `bind` makes of the op, and arrays and options by name, already checked.
        kernels: an op of nothing but kernels that PyTorch tries first: `run` then has a fifth argument, what
            `bind_kernels` makes of it.
    """

    call: type[CallSpec]
    run: Callable[..., Any]
    kernels: Op | None = None


@dataclass(frozen=True)
class Stack:
    """A function that calls an op whose first arguments, of one shape and dtype, lie side by side in one array.

    Attributes:
        call: its declaration. The array is its first argument; its boundaries are all boundaries of the op, whose other
            arguments and options it has, too.
        arguments: the names of the op's arguments that lie in the array.
        axis: the axis of the array along which they lie.
    """

    call: type[CallSpec]
    arguments: tuple[str, ...]
    axis: int

    @property
    def name(self) -> str:
        """The name of the array."""
        return next(iter(arguments(self.call)))

    def sources(self, op: Op) -> dict[str, str]:
        """Each other argument of the op -> the function's argument that it is."""
        (bounds,) = bounded(self.call)
        others = [name for name in op.arguments if name not in self.arguments]
        return {name: bounds if name in op.indices else name for name in others}

    @property
    def gradients(self) -> tuple[str, ...]:
        """The names of the arguments' gradients."""
        return tuple(f"d{name}" for name in self.arguments)

    def placed(self, outputs: Iterable[Array]) -> Iterable[Array]:
        """The outputs of a backward pass, with the arguments' gradients as parts of the array's gradient."""
        places = {name: place for place, name in enumerate(self.gradients)}
        for array in outputs:
            if array.name in places:
                array = array.within(Part(f"d{self.name}", self.axis, places[array.name], len(places)))
            yield array


@dataclass(frozen=True, eq=False)
class Op:
    """One op.

    Attributes:
        call: its declaration, the class of its checked calls.
        package: its package; the module `portable` has `forward(xp, spec, arrays)`, `backward(xp, spec, arrays,
            wanted)` and, where there are saved arrays, `recomputed(xp, spec, arrays)`, which computes them from the
            other inputs of the backward pass.
        implementations: the implementations; the first that takes a call runs it.
        replan: maps an implementation's plan to the one to use instead, for tuners and tests.
        functions: module of the package -> the names of public functions that call the op with other arguments. The
            module has a `Function` or a `Stack` for each, under its name in capitals. The one in a module `update` is a
            step of generation with the bits of the op.
        extra: module of the package -> its public names, written by hand; a module's name begins with the framework's.
    """

    call: type[CallSpec]
    package: str
    implementations: tuple[Implementation, ...] = ()
    replan: Replan | None = None
    functions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name, that of the public function."""
        return self.call.op

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Its array arguments, in the order of the public function; the first is required."""
        return tuple(arguments(self.call))

    @cached_property
    def indices(self) -> Mapping[str, Callable[[Any], int]]:
        """Each argument of non-decreasing int32 values, which has no gradient -> their upper bound in a call."""
        declared = arguments(self.call).items()
        return {name: partial(_size, a.reaches) for name, a in declared if a.reaches}

    @cached_property
    def options(self) -> Mapping[str, str]:
        """Its options, in order -> their types in an operator schema."""
        return {name: declared.kind for name, declared in options(self.call).items()}

    @cached_property
    def tuple_options(self) -> tuple[int, ...]:
        """The indices of the options that are tuples."""
        return tuple(place for place, kind in enumerate(self.options.values()) if "[]" in kind)

    def complete(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arrays and the options of a call, by name in the op's order, with defaults for those not given."""
        arrays = {name: given.get(name) for name in self.arguments}
        return arrays, {name: given.get(name, declared.default) for name, declared in options(self.call).items()}

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Every array that the forward pass may return to the user, in order."""
        return tuple(result.name for result in self.call.results)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The saved arrays: the other outputs of the forward pass, which the backward pass reads."""
        return tuple(result.name for result in self.call.kept)

    @property
    def whole(self) -> Mapping[str, Any]:
        """Options with which the backward pass reads the gradients of all computed results."""
        return self.call.whole

    def spec(self, params: Params, options: Mapping[str, Any]) -> Any:
        """A checked call. Raises ValueError or TypeError, see `errors`."""
        return self.call.of(params, options)

    def forward(self, spec: Any) -> Forward:
        """The forward pass; its outputs are the present results and saved arrays."""
        return Forward(self, spec)

    def backward(self, spec: Any, wanted: frozenset[str], stack: Stack | None = None) -> Backward:
        """The backward pass; it computes at least the gradients of the arguments `wanted`.

        With a stack, which `stacks` allows, its program writes those of the stack's arguments into one array.
        """
        return Backward(self, spec, wanted & differentiable(self), stack)

    def stacks(self, spec: Any, arch: Arch, stack: Stack) -> bool:
        """Whether kernels can write the gradients of the stack's arguments into one array."""
        first = self.implementation(spec, arch, "bwd")
        return first is not None and first.places.issuperset(stack.gradients)

    def same_gradient(self, spec: Any) -> Mapping[str, str]:
        """Argument -> another argument with the same gradient, which is computed once, for that other argument."""
        return spec.same_gradient()

    def folds(self, spec: Any, size: int) -> Iterable[Fold]:
        """Ways to fold `size` calls into one, the cheapest first; where none fits, the calls run one by one."""
        return spec.folds(size)

    def implementation(self, spec: Any, arch: Arch, which: Pass) -> Implementation | None:
        """The implementation that runs a pass on an architecture; None where the portable path does."""
        return next((each for each in self.implementations if each.has(spec, arch, which)), None)

    @cached_property
    def formulas(self) -> Any:
        """The module with the portable path."""
        return import_module(f"{self.package}.portable")

    @cached_property
    def others(self) -> tuple[Function | Stack, ...]:
        """The functions that call the op with other arguments."""
        named = [(module, name) for module, names in self.functions.items() for name in names]
        return tuple(getattr(import_module(f"{self.package}.{module}"), name.upper()) for module, name in named)

    def only(self, name: str) -> Op:
        """The op with only one of its implementations; calls that it does not take then run on the portable path.

        Args:
            name: that of its folder, with folders above it, as in "hopper.channels", where several have the same.
        """
        left = tuple(each for each in self.implementations if each.package.endswith(f".{name}"))
        if not left:
            names = ", ".join(each.name for each in self.implementations)
            raise ValueError(f"implementation is {name!r}, expected one of {names}")
        return replace(self, implementations=left)


@dataclass(frozen=True)
class OpPass:
    """A pass of an op."""

    op: Op
    spec: Any
    which: ClassVar[Pass]

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Call`."""
        raise NotImplementedError

    @property
    def computed(self) -> tuple[str, ...]:
        """The names of `outputs`."""
        raise NotImplementedError

    @cached_property
    def outputs(self) -> tuple[Array, ...]:
        """See `Call`."""
        return tuple(Array(name, p.shape, p.dtype) for name, p in self.spec.params(self.computed).items())

    def program(self, layouts: Layouts, arch: Arch) -> Program | None:
        """The program of the first implementation that takes the call; None where none does."""
        first = self.op.implementation(self.spec, arch, self.which)
        if first is None:
            return None
        return first.program(self.spec, self.which, self.inputs, self.outputs, layouts, arch, self.op.replan)


@dataclass(frozen=True)
class Forward(OpPass):
    """The forward pass: present arguments -> results and saved arrays."""

    which = "fwd"

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The arguments."""
        return self.spec.arguments

    @cached_property
    def computed(self) -> tuple[str, ...]:
        """Results and saved arrays."""
        return self.spec.computes()

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Call`."""
        outputs: Mapping[str, Any] = self.op.formulas.forward(xp, self.spec, arrays)
        return outputs


@dataclass(frozen=True)
class Backward(OpPass):
    """The backward pass: gradients of results, arguments and outputs of the forward pass -> gradients of arguments."""

    wanted: frozenset[str]
    stack: Stack | None = None
    which = "bwd"

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """See `CallSpec.reads`."""
        return self.spec.reads(self.wanted)

    @cached_property
    def computed(self) -> tuple[str, ...]:
        """See `CallSpec.makes`."""
        return self.spec.makes(self.wanted)

    @cached_property
    def outputs(self) -> tuple[Array, ...]:
        """See `Call`."""
        outputs = super().outputs
        return outputs if self.stack is None else tuple(self.stack.placed(outputs))

    def portable(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Call`."""
        gradients: Mapping[str, Any] = self.op.formulas.backward(xp, self.spec, arrays, self.wanted)
        return gradients

    def recomputed(self, xp: Namespace, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """The saved arrays, computed from the other `inputs`, so that derivatives pass through them."""
        if not self.spec.kept:
            return {}
        saved: Mapping[str, Any] = self.op.formulas.recomputed(xp, self.spec, arrays)
        return saved


def _with_options(launch: Launch, spec: CallSpec) -> Launch:
    """The launch with the options that its kernel names and that it does not set; see `Implementation`."""
    declared = options(type(spec)).items()
    constants = {name.upper(): getattr(spec, name) for name, _ in declared}
    scalars = {name: float(getattr(spec, name)) for name, option in declared if option.kind == "float"}
    unset = set(launch.kernel.arg_names).difference(launch.arrays, launch.together, launch.scalars, launch.constants)
    return replace(
        launch,
        constants={**launch.constants, **{name: value for name, value in constants.items() if name in unset}},
        scalars={**launch.scalars, **{name: value for name, value in scalars.items() if name in unset}},
    )


def _size(letter: str, spec: Any) -> int:
    size: int = spec.sizes[letter]
    return size


def differentiable(op: Op) -> frozenset[str]:
    """The arguments that have a gradient."""
    return with_gradients(op.call)


def gradients_of_results(op: Op) -> tuple[str, ...]:
    """The names of the gradients of all results in a backward pass."""
    return tuple(f"d{name}" for name in op.results)


def saved_names(op: Op, backward: Call) -> tuple[str, ...]:
    """The names of the arguments and forward outputs that a backward pass reads."""
    return tuple(name for name in backward.inputs if name not in gradients_of_results(op))


def gradient_names(op: Op, spec: Any) -> tuple[str, ...]:
    """The name of each argument's gradient in a backward pass; arguments with the same gradient share a name."""
    same = op.same_gradient(spec)
    return tuple(f"d{same.get(name, name)}" for name in op.arguments)
