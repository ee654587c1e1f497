"""The passes of an op on PyTorch tensors: a call is checked once, and planned once for each layout of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ..errors import check_nondecreasing
from ..op import Backward, Call, Op, Stack, differentiable, gradient_names, gradients_of_results, saved_names
from ..program import Array, Layouts, Program
from ..spec import Param, Params
from .arguments import bad_device, check_arguments
from .autocast import no_autocast
from .launch import DTYPES, Key, Launcher, Runner, concrete, dtype_name, key, layouts
from .xp import torch_namespace

Tensors = Sequence[Tensor | None]
Options = Sequence[Any]
Keys = tuple[Key | None, ...]
Shapes = Sequence[tuple[Sequence[int], torch.dtype] | None]  # shape and dtype of each argument


class Launchers:
    """Holds the launcher, so that tests can replace it by the interpreter.

    Attributes:
        current: the launcher that runs programs.
    """

    current: Launcher = Launcher()


class Pass:
    """A pass on one device: runs its kernels where there are any for the layout of its inputs, else the portable path.

    Attributes:
        names: the names of its input arrays, in order.
        makes: the names of the arrays that it returns, in order; it returns None for None or an absent array's name.
    """

    def __init__(self, call: Call, names: Sequence[str], makes: Sequence[str | None], device: torch.device) -> None:
        self.call = call
        self.names = tuple(names)
        self.makes = tuple(makes)
        self.device = device
        self.runners: dict[Any, Runner] = {}

    def run(self, tensors: Tensors) -> list[Tensor | None]:
        """Run on tensors of any layout."""
        layout = tuple([None if t is None else (t.stride(), t.data_ptr() & 15) for t in tensors])
        try:
            runner = self.runners[layout]
        except KeyError:
            runner = self.runners[layout] = self.runner(tuple(None if t is None else key(t) for t in tensors))
        return runner(tensors)

    def runner(self, keys: Keys) -> Runner:
        """The function that runs the pass on tensors with these keys."""
        return self.prepared(self.program(layouts(self.names, keys)))

    def program(self, layouts: Layouts) -> Program | None:
        """The program for inputs of these layouts; None where the portable path runs."""
        arch = Launchers.current.arch_of(self.device)
        return None if arch is None else self.call.program(layouts, arch)

    def prepared(self, program: Program | None) -> Runner:
        """The function that runs a program of this pass."""
        launcher = Launchers.current
        arch = launcher.arch_of(self.device)
        if program is None or arch is None:
            return self.portable
        return launcher.prepare(program, self.names, self.makes, arch, self.device)

    def portable(self, tensors: Tensors) -> list[Tensor | None]:
        """Run without a kernel; the results are dense and share no storage with the inputs or each other."""
        inputs = {name: t for name, t in zip(self.names, tensors, strict=True) if t is not None}
        with no_autocast(self.device.type):  # so that sums stay in float32 under autocast
            outputs = self.call.portable(torch_namespace(), inputs)
        storages = {t.untyped_storage().data_ptr() for t in inputs.values()}

        def own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
            tensor = tensor.to(dtype).contiguous()
            if tensor.untyped_storage().data_ptr() in storages:
                tensor = tensor.clone()
            storages.add(tensor.untyped_storage().data_ptr())
            return tensor

        owned = {array.name: own(outputs[array.name], DTYPES[array.dtype]) for array in self.call.outputs}
        return [None if name is None else owned.get(name) for name in self.makes]


class BackwardPass(Pass):
    """A backward pass on one device."""

    call: Backward


class Prepared:
    """A checked call with the layout of its inputs.

    Attributes:
        op, params, options: the call.
        started: whether `start` has been called.
        run: runs the forward pass on tensors of this layout, once started.
        saved: selects, from arguments, results and saved arrays, those that the backward pass reads.
        backward: the backward pass, as a function of which arguments need a gradient.
        stacked: the same for gradients in one array, see `stacked_pass`, as a function of a stack, too.
        limits: (index, upper bound) of each argument whose values are checked before each run.
        read: name -> result, for the results whose gradients the backward pass reads.
        unread: the indices of the other computed results.
    """

    def __init__(self, op: Op, params: Shapes, keys: Keys, device: torch.device, options: Options) -> None:
        spec = spec_of(op, params, options)
        forward, backward = op.forward(spec), op.backward(spec, differentiable(op))
        self.op = op
        self.keys = keys
        self.params = params
        self.options = options
        outputs = (*op.results, *op.kept)
        self.started = False
        self.run: Runner
        self._forward = Pass(forward, op.arguments, outputs, device)
        self._program = self._forward.program(layouts(op.arguments, keys))
        self.saved = _selector([(*op.arguments, *outputs).index(name) for name in saved_names(op, backward)])
        self.device = device
        # Only on a CPU: elsewhere, reading values would wait for the device.
        indices = op.indices.items() if device.type == "cpu" else ()
        self.limits = [(op.arguments.index(name), limit(spec)) for name, limit in indices]
        self.read = {array.name: array for array in forward.outputs if f"d{array.name}" in backward.inputs}
        others = {array.name for array in forward.outputs}.difference(self.read)
        self.unread = [place for place, name in enumerate(op.results) if name in others]

        def wanted(needs: tuple[bool, ...]) -> frozenset[str]:
            names = frozenset([name for name, need in zip(op.arguments, needs, strict=False) if need])
            return names & differentiable(op)

        @cache
        def pass_for(needs: tuple[bool, ...]) -> BackwardPass:
            return backward_pass(op, params, device, wanted(needs), *options)

        @cache
        def stacked_for(needs: tuple[bool, ...], stack: Stack) -> BackwardPass | None:
            return stacked_pass(op, params, device, wanted(needs), stack, *options)

        self.backward = pass_for
        self.stacked = stacked_for

    def start(self, backward: BackwardPass | None = None) -> None:
        """Compile the forward pass; meanwhile other threads compile the backward pass that will follow.

        The gradients that will come are taken to be dense, as they mostly are; for others it is compiled when they
        come.
        """
        launcher = Launchers.current
        arch = launcher.arch_of(self.device)
        if arch is not None and self._program is not None and backward is not None:
            with suppress(Exception):  # the backward pass will raise it
                program = backward.program(layouts(self.op.arguments, self.keys))
                launcher.begin([self._program, *([program] if program else [])], arch, self.device)
        self.run = self._forward.prepared(self._program)
        self.started = True

    @property
    def has_kernels(self) -> bool:
        """Whether kernels run the forward pass."""
        return self._program is not None

    def zeros(self, result: str) -> Tensor | None:
        """Zeros as the gradient of a result that no loss uses; None where the backward pass does not read it."""
        array = self.read.get(result)
        return None if array is None else torch.zeros(array.shape, dtype=DTYPES[array.dtype], device=self.device)


def _selector(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that selects items by index as a tuple; `itemgetter` is fastest, but returns no tuple of one item."""
    return itemgetter(*places) if len(places) > 1 else lambda items: tuple(items[place] for place in places)


def _prepared(op: Op, keys: Keys, options: Options) -> Prepared:
    """The prepared call, cached by keys and options."""
    places = op.tuple_options
    inside = tuple([type(item) for place in places for item in options[place] or ()]) if places else ()
    return _prepare(op, keys, inside, *options)


# The options are separate arguments, so that `typed` distinguishes 1, True and 1.0; `inside`, the types of the items of
# tuples among them, distinguishes (1,) and (True,).
@lru_cache(maxsize=4096, typed=True)
def _prepare(op: Op, keys: Keys, inside: tuple[type, ...], *options: Any) -> Prepared:
    first = keys[0]
    assert first is not None
    for name, key_ in zip(op.arguments, keys, strict=True):
        if key_ is not None and key_[3] != first[3]:
            raise bad_device(op.name, name, key_[3], op.arguments[0], first[3])
    params = tuple([None if k is None else (tuple(k[0]), k[2]) for k in keys])
    return Prepared(op, params, keys, first[3], options)


@lru_cache(maxsize=4096, typed=True)
def backward_pass(op: Op, params: Shapes, device: torch.device, wanted: frozenset[str], *options: Any) -> BackwardPass:
    """The backward pass for the gradients of `wanted`; its inputs are gradients of results, then saved tensors."""
    spec = spec_of(op, params, options)
    names = (*gradients_of_results(op), *saved_names(op, op.backward(spec, differentiable(op))))
    return BackwardPass(op.backward(spec, wanted), names, wanted_names(op, spec, wanted), device)


@lru_cache(maxsize=4096, typed=True)
def stacked_pass(
    op: Op, params: Shapes, device: torch.device, wanted: frozenset[str], stack: Stack, *options: Any
) -> BackwardPass | None:
    """The backward pass whose first result is one array, with the gradients of all the stack's arguments.

    Its other results are those of `backward_pass`, as are its inputs. None where no kernel can write that array.
    """
    arch = Launchers.current.arch_of(device)
    spec = spec_of(op, params, options)
    if arch is None or not op.stacks(spec, arch, stack):
        return None
    apart = backward_pass(op, params, device, wanted, *options)
    makes = (f"d{stack.name}", *apart.makes[len(stack.arguments) :])
    return BackwardPass(op.backward(spec, wanted, stack), apart.names, makes, device)


def gradient_alone(op: Op, name: str, tensors: Tensors, options: Options, gradients: Sequence[Tensor]) -> Tensor:
    """The gradient of an argument, from those of all results, where no output of the forward pass has a part in it.

    Zeros stand for these outputs, and no forward pass is run.
    """
    first = tensors[0]
    assert first is not None
    params = tuple([None if p is None else (tuple(p[0]), p[1]) for p in shapes_of(tensors)])
    backward = backward_pass(op, params, first.device, frozenset({name}), *options)
    given = dict(zip((*op.arguments, *gradients_of_results(op)), (*tensors, *gradients), strict=True))
    for array in _outputs(backward):
        given[array.name] = torch.zeros(array.shape, dtype=DTYPES[array.dtype], device=first.device)
    found = backward.run([given[read] for read in backward.names])[op.arguments.index(name)]
    assert found is not None
    return found


@lru_cache(maxsize=4096)
def _outputs(backward: BackwardPass) -> tuple[Array, ...]:
    """Of the forward pass, those that a backward pass reads."""
    outputs = backward.call.op.forward(backward.call.spec).outputs
    return tuple(array for array in outputs if array.name in backward.names)


def forget_plans() -> None:
    """Forget all prepared calls, as another launcher would not run them."""
    for cached in (_prepare, backward_pass, stacked_pass, _outputs):
        cached.cache_clear()


def whole(prepared: Prepared) -> Prepared:
    """The same call with a backward pass that reads the gradients of all computed results.

    A result that is not returned to the user can have a gradient in a second derivative, through its saved tensor.
    """
    op = prepared.op
    options = [op.whole.get(name, option) for name, option in zip(op.options, prepared.options, strict=True)]
    return _prepared(op, prepared.keys, options)


def wanted_names(op: Op, spec: Any, wanted: frozenset[str]) -> list[str | None]:
    """For each argument, the name of its gradient where it is wanted."""
    pairs = zip(op.arguments, gradient_names(op, spec), strict=True)
    return [gradient if name in wanted else None for name, gradient in pairs]


def shapes_of(tensors: Tensors) -> Shapes:
    """Shape and dtype of each tensor, None where it is absent."""
    return [None if t is None else (t.shape, t.dtype) for t in tensors]


def spec_of(op: Op, shapes: Shapes, options: Options) -> Any:
    """The checked call."""
    params: Params = {
        name: None if p is None else Param(tuple(p[0]), dtype_name(p[1]))
        for name, p in zip(op.arguments, shapes, strict=True)
    }
    return op.spec(params, dict(zip(op.options, map(concrete, options), strict=True)))


def prepared_call(op: Op, tensors: Tensors, options: Options) -> Prepared:
    """The prepared call, not started where it is new."""
    try:
        # As `key`, whose calls would take more host time.
        keys: Keys = tuple(
            [None if t is None else (t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & 15) for t in tensors]
        )
        prepared = _prepared(op, keys, options)
    except Exception:
        check_arguments(op, tensors, options)  # raises a clearer error for wrong types
        raise
    for place, limit in prepared.limits:
        if (numbers := tensors[place]) is not None:
            check_nondecreasing(op.name, op.arguments[place], numbers.tolist(), limit)
    return prepared


def run_forward(op: Op, tensors: Tensors, options: Options) -> tuple[Prepared, list[Tensor | None]]:
    """The prepared call, and its results and saved arrays."""
    prepared = prepared_call(op, tensors, options)
    if not prepared.started:
        prepared.start()
    return prepared, prepared.run(tensors)
