"""A checked call of an op. Its fields declare the arguments and options; both bindings derive the rest from them.

An op defines a subclass with its fields, letters and results, and the few checks that letters cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Literal, TypeVar, cast

from .declaration import Argument, Axis, Bundle, Letter, Option, Result, Sizes, alternatives, form
from .dtypes import BYTES
from .errors import bad_dtype, bad_shape, bad_type, bad_value, check_option, renamed

Pass = Literal["fwd", "bwd"]
ANY_RANK = tuple(range(65))  # an array of PyTorch has at most 64 axes
BATCH, SEQUENCES = "B", "S"  # letters of every op with a time axis; equal without packed sequences


@dataclass(frozen=True, slots=True)
class Param:
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * BYTES[self.dtype]


Params = Mapping[str, Param | None]  # by argument; None where an optional argument is absent


class Size:
    """The size of a letter, as an attribute of a call.

    Args:
        letter: the letter.
        absent: its value where no present argument has the letter.
    """

    def __init__(self, letter: str, absent: int | None = None) -> None:
        self.letter = letter
        self.absent = absent

    def __get__(self, spec: Any, owner: Any) -> int:
        size: int = spec.sizes.get(self.letter, self.absent)
        return size


@dataclass(frozen=True)
class CallSpec:
    """Base of the checked calls of an op: shape and dtype of each argument, None where absent, and the options.

    Attributes:
        op: the op's name in errors.
        letters: the axes, by letter.
        independent: letters along which parts of a call do not see one another, so that a DTensor may be sharded there.
        divides_time: whether the function takes a `context`, with which processes or devices have parts of a sequence.
        results: the arrays that a forward pass may return to the user, in order.
        kept: the saved arrays: those that it computes only for the backward pass.
        whole: options with which the backward pass reads the gradients of all computed results.
        bundles: the named tuples that the function takes, if they are `leading`, and returns after its results.
        leading: the arguments and bundles that the function takes first, though it checks them last, as declared.
        autocast: the activations that `torch.autocast` casts; see `autocast_ranks` for what is cast with them.
        elsewhere: names that other libraries have for arguments -> what to pass here.
        casts_parameters: whether it casts the parameters among them, too, as it does for products of matrices.
        sizes: letter -> size.
        first: the first argument.
        packed: whether the call has packed sequences: several, one after the other, in a batch of one.

    Raises:
        ValueError, TypeError: on construction, for arguments and options that do not fit together.
    """

    op: ClassVar[str]
    letters: ClassVar[Mapping[str, Letter]]
    independent: ClassVar[tuple[str, ...]] = ()
    divides_time: ClassVar[bool] = False
    results: ClassVar[tuple[Result, ...]] = ()
    kept: ClassVar[tuple[Result, ...]] = ()
    whole: ClassVar[Mapping[str, Any]] = {}
    bundles: ClassVar[Mapping[str, Bundle]] = {}
    leading: ClassVar[tuple[str, ...]] = ()
    autocast: ClassVar[tuple[str, ...]] = ()
    casts_parameters: ClassVar[bool] = False
    elsewhere: ClassVar[Mapping[str, str]] = {}
    # Attributes and no properties: a compiler that traces the portable path cannot trace declarations.
    sizes: dict[str, Any] = field(init=False, repr=False, compare=False)
    first: Param = field(init=False, repr=False, compare=False)
    packed: bool = field(init=False, repr=False, compare=False)

    # Parts of the public functions' docstring, which begins with that of the class.
    RETURNS: ClassVar[str]
    SOURCE: ClassVar[str] = ""
    JAX_NOTES: ClassVar[str] = ""  # in place of what is said of an op's kernels and derivatives
    TORCH_EXAMPLE: ClassVar[str]
    JAX_EXAMPLE: ClassVar[str]

    @classmethod
    def of(cls, params: Params, options: Mapping[str, Any]) -> Any:
        """The checked call with these shapes and dtypes by `shown` name, None where absent, and options by name."""
        names = shown(cls)
        for name, argument in arguments(cls).items():
            if params.get(names[name]) is None and not argument.optional:
                raise bad_type(cls.op, names[name], None, "an array")
        try:
            return cls(**{argument: params.get(name) for argument, name in names.items()}, **options)
        except (ValueError, TypeError) as error:
            renamed(error, {cls.op: cls.op, **names})
            raise

    def __post_init__(self) -> None:
        declared = arguments(type(self))
        object.__setattr__(self, "sizes", {})
        object.__setattr__(self, "first", self[next(iter(declared))])
        object.__setattr__(self, "packed", any(a.reaches and self[name] is not None for name, a in declared.items()))
        self.check_options()
        for name, argument in _in_order(type(self)):
            if SEQUENCES in argument.shape.split():  # without boundaries, a state has one entry per batch row
                self.sizes.setdefault(SEQUENCES, self.sizes[BATCH])
            if (param := self[name]) is not None:
                axes = self._check_shape(name, argument, param)
                self._check_dtype(name, argument, param)
                self._check_ranges(name, param, axes)
                if name == next(iter(arguments(type(self)))):
                    self.bind_sizes()
            elif argument.reaches and not self.packed:
                self.sizes[SEQUENCES] = self.sizes[BATCH]
        self.check()

    def check_options(self) -> None:
        """Raise for an option of the wrong type, or with a value that is not among its choices."""
        for name, declared in options(type(self)).items():
            value = getattr(self, name)
            # A value of the default's own type is right, but for ints that are too large and for what a tuple holds.
            right = type(value) is type(declared.default) and type(value) not in (int, tuple)
            if declared.kind != "ScalarType?" and not right:
                check_option(self.op, name, value, declared.kind)
            if declared.choices and value not in declared.choices:
                raise bad_value(self.op, name, value, " or ".join(map(repr, declared.choices)))

    def shape_of(self, name: str) -> str:
        """The declared shape of an argument; a subclass may leave out alternatives that this call cannot have."""
        return arguments(type(self))[name].shape

    def bind_sizes(self) -> None:
        """Set sizes that follow from the first argument but are not among its letters; by default none."""

    def check(self) -> None:
        """Raise for errors that letters cannot express; by default none."""

    def __getitem__(self, name: str) -> Param | None:
        """Shape and dtype of an argument, a result, a saved array or a gradient; None where it is absent."""
        if name in arguments(type(self)):
            param: Param | None = getattr(self, name)
            return param
        computed = _computed(type(self))
        if name in computed:
            result = computed[name]
            present = result.when is None or getattr(self, result.when)
            return self.param(result.shape, result.dtype) if present else None
        if name.startswith("d"):
            return self[name[1:]]
        raise KeyError(name)

    def param(self, shape: str, dtype: str) -> Param:
        """Shape and dtype of an array that is declared in letters."""
        (axes,) = alternatives(shape)
        sizes = {axis.letter: self.sizes.get(axis.letter, getattr(self, axis.letter, None)) for axis in axes}
        dims = tuple(size for axis in axes for size in size_of(axis, sizes))
        return Param(dims, next(self._dtypes((dtype,))))

    def present(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names of those arrays that are present in this call."""
        return tuple(name for name in names if self[name] is not None)

    def params(self, names: Iterable[str]) -> dict[str, Param]:
        """Shapes and dtypes of those arrays that are present in this call."""
        return {name: param for name in names if (param := self[name]) is not None}

    @property
    def arguments(self) -> tuple[str, ...]:
        """The present arguments."""
        return self.present(arguments(type(self)))

    @property
    def uses(self) -> frozenset[str]:
        """What a kernel has to support: the present arguments, and the options that differ from their default."""
        changed = (name for name, option in options(type(self)).items() if getattr(self, name) != option.default)
        return frozenset((*self.arguments, *changed))

    @property
    def compute_dtype(self) -> str:
        """The dtype in which values of the first argument are summed."""
        return accumulator(self.first.dtype)

    def limited(self) -> dict[str, int]:
        """The present arguments of non-decreasing numbers, and what these may not exceed."""
        return {name: self.sizes[letter] for name, letter in bounded(type(self)).items() if self[name] is not None}

    def gradients_in(self) -> tuple[str, ...]:
        """The gradients that the backward pass reads: those of the results that are returned to the user."""
        reached = (r for r in self.results if r.returned is None or getattr(self, r.returned))
        return tuple(f"d{result.name}" for result in reached if self[result.name] is not None)

    def computes(self) -> tuple[str, ...]:
        """The arrays that the forward pass computes: results, then saved arrays."""
        return self.present(_computed(type(self)))

    def reads(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """The arrays that a backward pass reads to compute the gradients of the arguments `wanted`."""
        return (*self.gradients_in(), *self.arguments, *(result.name for result in self.kept))

    def makes(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """The gradients that a backward pass computes, at least those of the arguments `wanted`."""
        return tuple(f"d{name}" for name in self.arguments if name in wanted)

    def same_gradient(self) -> Mapping[str, str]:
        """Argument -> another argument with the same gradient, which is computed once, for that other argument."""
        return {}

    def same_axes(self) -> Mapping[str, str]:
        """Letter -> another letter of the same axis; of a letter of many axes each is `batch[0]`, `batch[1]`, ..."""
        return {}

    def axes_of(self, *letters: str) -> dict[str, int]:
        """Argument, result or saved array -> its axis of one of these letters; without axes broadcast from size 1."""
        return {name: axes[letter] for name in (*self.arguments, *self.computes())
                for axes in [self._axes(name)] for letter in letters if letter in axes}  # fmt: skip

    def _axes(self, name: str) -> dict[str, int]:
        """Letter -> axis of an array; without axes of size 1 that are broadcast."""
        param = self[name]
        assert param is not None
        declared = arguments(type(self)).get(name) or _computed(type(self))[name]
        for axes in alternatives(declared.shape):
            if len(axes) == len(param.shape) and not any(axis.many for axis in axes):
                shared = [axis.may_be_one and size != self.sizes[axis.letter]
                          for axis, size in zip(axes, param.shape, strict=True)]  # fmt: skip
                return {axis.letter: place for place, axis in enumerate(axes) if not shared[place] and not axis.offset}
        return {}

    def folds(self, size: int) -> Iterator[Fold]:
        """Ways to fold `size` calls into one, the cheapest first; where none fits, the calls run one by one.

        By default there is one way: the calls become rows of one batch.
        """
        yield self.folded(dict.fromkeys(self.axes_of(BATCH, SEQUENCES), 0), size)

    def folded(self, axes: Mapping[str, int | None], size: int, **others: Any) -> Fold:
        """The fold of `size` calls along `axes`; each gradient is folded like its array.

        Args:
            axes: as `Fold.axes`, for arguments, results and saved arrays.
            size: the number of calls.
            others: options of the folded call that replace those of this call.
        """

        def of(name: str) -> Param | None:
            param = self[name]
            if param is None or name not in axes:
                return param
            axis, shape = axes[name], param.shape
            if axis is None:
                return replace(param, shape=(size, *shape))
            return replace(param, shape=(*shape[:axis], size * shape[axis], *shape[axis + 1 :]))

        own = {name: getattr(self, name) for name in options(type(self))}
        spec = self.of({name: of(name) for name in arguments(type(self))}, own | others)
        return Fold(spec, {f"d{name}": axis for name, axis in axes.items()} | dict(axes))

    def bytes_moved(self, which: Pass) -> int:
        """The fewest bytes a pass moves: each input read once, each output written once."""
        wanted = with_gradients(type(self))
        forward = (*self.arguments, *self.computes())
        names = forward if which == "fwd" else (*self.reads(wanted), *self.makes(wanted))
        return sum(param.nbytes for param in self.params(names).values())

    def flops(self, which: Pass) -> int:
        """Multiplications and additions of a pass."""
        raise NotImplementedError

    def _dtypes(self, names: Iterable[str]) -> Iterator[str]:
        """The dtypes that are named directly, or by attributes of the call."""
        for name in names:
            value = getattr(self, name, name)
            if isinstance(value, tuple):
                yield from value
            else:
                yield value.dtype if isinstance(value, Param) else value

    def _check_dtype(self, name: str, argument: Argument, param: Param) -> None:
        allowed = tuple(dict.fromkeys(self._dtypes(argument.dtypes)))
        if param.dtype in allowed:
            return
        if argument.reaches or argument.labels:
            allowed = (*allowed, "int64")  # of which the public functions make int32
        if argument.of_bools and param.dtype == "bool":
            allowed = (*allowed[:-1], f"{allowed[-1]} ({argument.of_bools})")
        raise bad_dtype(self.op, name, param.dtype, allowed)

    def _check_shape(self, name: str, argument: Argument, param: Param) -> tuple[Axis, ...]:
        """Set the sizes of an argument's letters; returns the axes of the alternative that fits its shape."""
        forms = alternatives(self.shape_of(name))
        if argument.reaches:
            self._check_boundaries(name, param, self.letters[SEQUENCES].least)
        for axes in forms:
            found = fits(axes, param.shape, self.sizes)
            if found is not None:
                self.sizes.update(found)
                return axes
        first, declared = next(iter(arguments(type(self)).items()))
        if argument.shape == declared.shape and name != first:
            expected = f"the shape of {first}, {getattr(self, first).shape}"
        else:
            expected = " or ".join(form(axes, self._words, self.sizes) for axes in forms)
        raise bad_shape(self.op, name, param.shape, expected)

    def _check_boundaries(self, name: str, param: Param, least: int) -> None:
        """Raise for boundaries of fewer than `least` sequences, or in a batch of several rows."""
        if len(param.shape) != 1 or param.shape[0] <= least:
            more = " with at least one sequence" if least else ""
            raise bad_shape(self.op, name, param.shape, f"(sequences + 1,){more}")
        if self.sizes[BATCH] != 1:
            rows, (axes, *_) = next(
                (n, alternatives(a.shape)) for n, a in arguments(type(self)).items() if BATCH in a.shape.split()
            )
            expected = form(axes, self._words, {BATCH: 1})
            raise bad_shape(self.op, rows, getattr(self, rows).shape, f"{expected}, since {name} is given")

    def _check_ranges(self, name: str, param: Param, axes: tuple[Axis, ...]) -> None:
        """Raise for a size that its letter does not allow."""
        for place, axis in enumerate(axes):
            if axis.many or axis.offset or axes[0].many or axis.fixed is not None:
                continue
            letter, size, declared = axis.letter, param.shape[place], self.letters[axis.letter]
            if declared.divides is not None:
                other = self.sizes.get(declared.divides)
                # Where the other one comes in a later argument, the op checks it.
                if other is not None and (size < 1 or other % size):
                    word = self.letters[declared.divides].word
                    expected = f"{declared.word} that divide the {word}, {other}"
                    raise bad_value(self.op, f"{name}.shape[{place}]", size, expected)
            elif declared.most is not None and not declared.least <= size <= declared.most:
                known = {k: v for k, v in self.sizes.items() if k != letter}
                expected = " or ".join(form(axes, self._words, known) for axes in alternatives(self.shape_of(name)))
                raise bad_shape(self.op, name, param.shape, expected)

    @property
    def _words(self) -> Mapping[str, Letter]:
        """The letters as named in errors; without packed sequences, S has the word of the batch."""
        if SEQUENCES not in self.letters or self.packed:
            return self.letters
        return {**self.letters, SEQUENCES: self.letters[BATCH]}


@dataclass(frozen=True, slots=True)
class Fold:
    """Several calls folded into one, for `jax.vmap`.

    Attributes:
        spec: the folded call.
        axes: array -> the axis along which the calls' arrays are concatenated, or None where they are stacked along a
            new first axis. Arrays without an entry are shared by all calls.
    """

    spec: Any
    axes: Mapping[str, int | None]


F = TypeVar("F", bound=Callable[..., Any])


def once(function: F) -> F:
    """`functools.lru_cache` that keeps the function's type: mypy takes a class of dataclasses to be unhashable."""
    return cast(F, lru_cache(maxsize=4096, typed=True)(function))


@once
def arguments(call: type[CallSpec]) -> dict[str, Argument]:
    """The declared arguments, in order."""
    return {f.name: declared for f in fields(call) if isinstance(declared := f.metadata.get("declared"), Argument)}


@once
def shown(call: type[CallSpec]) -> dict[str, str]:
    """Argument -> its name in errors and among the arrays of a call: that of an array of a bundle has a dot."""
    taken = {name: call.bundles[name].kind for name in call.leading if name in call.bundles}
    dotted = {f"{bundle}_{name}": f"{bundle}.{name}" for bundle, kind in taken.items() for name in kind._fields}
    return {name: dotted.get(name, name) for name in arguments(call)}


@once
def parameters(call: type[CallSpec]) -> dict[str, Argument | Bundle]:
    """The arguments and bundles that the public function takes, in its order."""
    declared = arguments(call)
    leading = {name: call.bundles.get(name) or declared[name] for name in call.leading}
    return leading | {name: declared[name] for name, as_shown in shown(call).items() if name == as_shown}


@once
def required_count(call: type[CallSpec]) -> int:
    """The number of required arguments, which the public function takes before the optional ones."""
    return sum(not argument.optional for argument in arguments(call).values())


@once
def options(call: type[CallSpec]) -> dict[str, Option]:
    """The declared options, in order."""
    return {f.name: declared for f in fields(call) if isinstance(declared := f.metadata.get("declared"), Option)}


@once
def bounded(call: type[CallSpec]) -> dict[str, str]:
    """The arguments of non-decreasing numbers, and the letter whose size is their upper bound."""
    return {name: argument.reaches for name, argument in arguments(call).items() if argument.reaches}


@once
def with_gradients(call: type[CallSpec]) -> frozenset[str]:
    """The arguments that have a gradient."""
    return frozenset(name for name, argument in arguments(call).items() if argument.differentiable)


@once
def autocast_ranks(call: type[CallSpec]) -> dict[str, tuple[int, ...]]:
    """What `torch.autocast` casts: argument, by its `shown` name -> the numbers of axes with which float32 is, too.

    From float32 it casts activations: the arguments of `call.autocast`, and those that must have the dtype of one. An
    array without an axis of the batch is a parameter, such as a matrix that is constant in time, and stays float32. So
    does what may be float32 beside an activation; in 16 bits this is cast, too, since two such dtypes do not meet.
    """
    if call.casts_parameters:
        return {shown(call)[name]: ANY_RANK for name in call.autocast}
    found: dict[str, tuple[int, ...]] = {}
    for name, argument in arguments(call).items():
        if name in call.autocast or {*argument.dtypes} <= {*call.autocast}:
            forms = alternatives(argument.shape)
            found[name] = tuple(len(axes) for axes in forms if axes[0].letter in (BATCH, SEQUENCES))
        elif not found.keys().isdisjoint(argument.dtypes):
            found[name] = ()
    return {shown(call)[name]: ranks for name, ranks in found.items()}


@once
def _computed(call: type[CallSpec]) -> dict[str, Result]:
    """Results and saved arrays by name."""
    return {result.name: result for result in (*call.results, *call.kept)}


@once
def _in_order(call: type[CallSpec]) -> list[tuple[str, Argument]]:
    """The arguments in the order in which sizes are read: axes that may be 1 after others, states after boundaries."""

    def late(item: tuple[str, Argument]) -> int:
        axes: list[Axis] = [axis for form in alternatives(item[1].shape) for axis in form]
        if item[1].reaches:
            return 2
        if any(axis.letter == SEQUENCES for axis in axes):
            return 3
        return int(any(axis.may_be_one or axis.offset for axis in axes))

    return sorted(arguments(call).items(), key=late)


def accumulator(dtype: str) -> str:
    """The dtype in which values of `dtype` are summed."""
    return dtype if dtype in ("float64", "complex64", "complex128") else "float32"


def known(size: int) -> bool:
    """Whether a size is a number: a program that is exported for every size has a symbol in its place."""
    return isinstance(size, int)


def slot_count(spec: Any, steps: int) -> int:
    """The number of slots of a row in an array with one slot per `steps` steps of a sequence.

    In a packed row, the slots of sequence i begin at start // steps + i. It needs at most
    end // steps - start // steps + 1 slots, so its slots never overlap those of the next sequence.
    """
    return slot_count_of(spec.time, steps, spec.sequences if spec.packed else None)


def slot_count_of(time: int, steps: int, sequences: int | None) -> int:
    """As `slot_count`, for a row of `time` steps; `sequences` is None where none are packed."""
    return -(-time // steps) if sequences is None else time // steps + sequences


def fits(axes: tuple[Axis, ...], shape: tuple[int, ...], known: Sizes) -> dict[str, Any] | None:
    """The sizes of those letters of a shape that are not known yet; None where the shape does not fit."""
    many = [place for place, axis in enumerate(axes) if axis.many]
    if many:
        extra = len(shape) - (len(axes) - 1)
        if extra < 0:
            return None
        (place,) = many
        shape = (*shape[:place], shape[place : place + extra], *shape[place + extra :])  # type: ignore[arg-type]
    if len(shape) != len(axes):
        return None
    found: dict[str, Any] = {}
    for axis, size in zip(axes, shape, strict=True):
        if axis.may_be_one and size == 1:
            continue
        own = size if axis.many else size - axis.offset
        expected = known.get(axis.letter, found.get(axis.letter)) if axis.fixed is None else axis.fixed
        if expected is None:
            found[axis.letter] = own
        elif own != expected:
            return None
    return found


def size_of(axis: Axis, sizes: Sizes) -> tuple[int, ...]:
    """The sizes in a shape for a declared axis: one, or any number where the axis is `many`."""
    if axis.fixed is not None:
        return (axis.fixed,)
    size = sizes[axis.letter]
    return tuple(size) if axis.many else (size + axis.offset,)
