"""Turns an `Op` into a PyTorch function: launched directly in eager code, a registered operator under tracing.

The direct path spends little of the host's time. The operators `retrograd::<op>` and `retrograd::<op>_backward` compute
the same through PyTorch's dispatcher, for torch.compile, dispatch modes and subclasses of Tensor. An operator returns
a fixed number of tensors, so a result that is not there is an empty tensor there, and None on the direct path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .errors import bad_value
from .op import Call, Op, Param, Params, differentiable, gradient_names, gradients_of_results, saved_names
from .torch_arguments import absent, concrete, not_a_tensor, resolved
from .torch_launch import DTYPES, Key, Runner, arch_of, dtype_name, key, launches_directly, layouts, prepare
from .xp import torch_namespace

Tensors = Sequence[Tensor | None]
Options = Sequence[Any]
Results = tuple[Tensor | None, ...]  # one for each of the op's results, None where it is not there
Keys = tuple[Key | None, ...]
Shapes = Sequence[tuple[Sequence[int], torch.dtype] | None]  # shape and dtype of each argument


def bind(op: Op) -> Callable[[Tensors, Options], Results]:
    """The function from an op's arrays and options, each in the op's order, to its results.

    It registers the op's operators with PyTorch, so it is called once an op.
    """
    direct = _direct(op)
    operator = _register(op)
    count = len(op.results)
    numbers = [place for place, name in enumerate(op.arguments) if name in op.indices]

    def call(tensors: Tensors, options: Options) -> Results:
        for place in numbers:  # a few numbers are sooner copied than reached by strides
            if isinstance(tensors[place], Tensor):
                tensors = (*tensors[:place], tensors[place].contiguous(), *tensors[place + 1 :])  # type: ignore[union-attr]
        if launches_directly(tensors):
            if torch.is_grad_enabled():
                return direct(*tensors, options)
            return tuple(_forward(op, tensors, options)[1][:count])
        if not all(tensor is None or isinstance(tensor, Tensor) for tensor in tensors) or tensors[0] is None:
            raise not_a_tensor(op.name, op.arguments, tensors)
        made: Results = operator(*tensors, *options)[:count]
        return made

    return call


class _Pass:
    """A pass on one device: runs its kernels where there are any for the layout of its inputs, else the portable path.

    Attributes:
        names: the arrays that it is given, in order.
        makes: the arrays that it returns, in order; None, and a name of what is not there, stand for None.
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
        """What runs it on tensors of a layout."""
        arch = arch_of(self.device)
        program = None if arch is None else self.call.program(layouts(self.names, keys), arch)
        if program is None or arch is None:
            return self.portable
        return prepare(program, self.names, self.makes, arch, self.device)

    def portable(self, tensors: Tensors) -> list[Tensor | None]:
        """Run without a kernel; the results are dense, and tensors of their own."""
        given = {name: t for name, t in zip(self.names, tensors, strict=True) if t is not None}
        with _no_autocast(self.device.type):  # sums are kept in float32 there too
            made = self.call.portable(torch_namespace(), given)
        storages = {t.untyped_storage().data_ptr() for t in given.values()}

        def own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
            tensor = tensor.to(dtype).contiguous()
            if tensor.untyped_storage().data_ptr() in storages:
                tensor = tensor.clone()
            storages.add(tensor.untyped_storage().data_ptr())
            return tensor

        owned = {array.name: own(made[array.name], DTYPES[array.dtype]) for array in self.call.outputs}
        return [None if name is None else owned.get(name) for name in self.makes]


def _no_autocast(device: str) -> AbstractContextManager[Any]:
    """A context without autocast; some devices, such as `meta`, never have it."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


class _Prepared:
    """A checked call with the layout of its inputs.

    Attributes:
        run: runs the forward pass on tensors of this layout.
        saved: from arguments, results and kept arrays to what the backward pass reads of them.
        backward: the backward pass, by which of the arguments need a gradient.
    """

    def __init__(self, op: Op, params: Shapes, keys: Keys, device: torch.device, options: Options) -> None:
        spec = _spec(op, params, options)
        forward, backward = op.forward(spec), op.backward(spec, differentiable(op))
        made = (*op.results, *op.kept)
        self.run = _Pass(forward, op.arguments, made, device).runner(keys)
        self.saved = _taker([(*op.arguments, *made).index(name) for name in saved_names(op, backward)])
        self.device = device
        self.read = {array.name: array for array in forward.outputs if f"d{array.name}" in backward.inputs}

        @cache
        def pass_for(needs: tuple[bool, ...]) -> _Pass:
            wanted = frozenset([name for name, need in zip(op.arguments, needs, strict=False) if need])
            return _backward(op, params, device, wanted - op.indices, *options)

        self.backward = pass_for

    def zeros(self, result: str) -> Tensor | None:
        """The gradient of a result that no loss reads, where the backward pass reads it."""
        array = self.read.get(result)
        return None if array is None else torch.zeros(array.shape, dtype=DTYPES[array.dtype], device=self.device)


def _taker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Takes what stands at some places; `itemgetter` does so soonest, but gives one thing by itself."""
    return itemgetter(*places) if len(places) > 1 else lambda given: tuple(given[place] for place in places)


# The options are arguments of their own, so that `typed` tells 1 from True and from 1.0.
@lru_cache(maxsize=4096, typed=True)
def _prepare(op: Op, keys: Keys, *options: Any) -> _Prepared:
    first = keys[0]
    assert first is not None
    for name, key_ in zip(op.arguments, keys, strict=True):
        if key_ is not None and key_[3] != first[3]:
            expected = f"{first[3]}, the device of {op.arguments[0]}"
            raise bad_value(op.name, f"device of {name}", str(key_[3]), expected)
    params = tuple([None if k is None else (tuple(k[0]), k[2]) for k in keys])
    return _Prepared(op, params, keys, first[3], options)


@lru_cache(maxsize=4096, typed=True)
def _backward(op: Op, params: Shapes, device: torch.device, wanted: frozenset[str], *options: Any) -> _Pass:
    """The backward pass for the arguments' gradients wanted; it is given the results' gradients, then what is saved."""
    spec = _spec(op, params, options)
    names = (*gradients_of_results(op), *saved_names(op, op.backward(spec, differentiable(op))))
    return _Pass(op.backward(spec, wanted), names, _wanted_names(op, spec, wanted), device)


def _wanted_names(op: Op, spec: Any, wanted: frozenset[str]) -> list[str | None]:
    """For each argument, the name of its gradient where it is wanted."""
    return [made if name in wanted else None for name, made in zip(op.arguments, gradient_names(op, spec), strict=True)]


def _spec(op: Op, shapes: Shapes, options: Options) -> Any:
    params: Params = {
        name: None if p is None else Param(tuple(p[0]), dtype_name(p[1]))
        for name, p in zip(op.arguments, shapes, strict=True)
    }
    return op.spec(params, dict(zip(op.options, map(concrete, options), strict=True)))


def _forward(op: Op, tensors: Tensors, options: Options) -> tuple[_Prepared, list[Tensor | None]]:
    """The prepared call, and its results and kept arrays."""
    try:
        keys = tuple([None if t is None else key(t) for t in tensors])
    except AttributeError:
        raise not_a_tensor(op.name, op.arguments, tensors) from None
    if keys[0] is None:
        raise not_a_tensor(op.name, op.arguments, tensors)
    prepared = _prepare(op, keys, *options)
    return prepared, prepared.run(tensors)


def _direct(op: Op) -> Callable[..., Results]:
    """The direct path: kernels launched without PyTorch's dispatcher."""
    count = len(op.results)
    arguments = len(op.arguments)

    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        prepared: _Prepared = ctx.prepared
        came = [
            prepared.zeros(name) if g is None else resolved(g) for name, g in zip(op.results, gradients, strict=True)
        ]
        return (*prepared.backward(ctx.needs_input_grad).run((*came, *ctx.saved_tensors)), None)

    refuse_twice = once_differentiable(backward)

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Results:
            tensors = given[:arguments]
            prepared, made = _forward(op, tensors, given[arguments])
            ctx.prepared = prepared
            there = (*tensors, *made)
            ctx.save_for_backward(*prepared.saved(there))
            ctx.set_materialize_grads(False)
            return tuple(made[:count])

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
            # Grad mode is on only where a second derivative was asked for; it is refused when it is taken.
            result: tuple[Tensor | None, ...] = (refuse_twice if torch.is_grad_enabled() else backward)(ctx, *gradients)
            return result

    # Function.apply without its look for function transforms: `launches_directly` has made sure that there are none.
    apply: Callable[..., Results] = super(torch.autograd.Function, Direct).apply
    return apply


def _register(op: Op) -> Callable[..., tuple[Tensor, ...]]:
    """Register `retrograd::<op>` and `retrograd::<op>_backward`, with shapes and derivative."""
    outputs = (*op.results, *op.kept)
    arguments = len(op.arguments)
    tensors = ", ".join(f"Tensor{'?' if place else ''} {name}" for place, name in enumerate(op.arguments))
    options = "".join(f", {kind} {name}" for name, kind in op.options.items())
    returned = ", ".join(["Tensor"] * len(outputs))

    def run(*given: Any) -> tuple[Tensor, ...]:
        _, made = _forward(op, given[:arguments], given[arguments:])
        return tuple(absent(given[0]) if t is None else t for t in made)

    def fake(*given: Any) -> tuple[Tensor, ...]:
        spec = _spec(op, [None if t is None else (t.shape, t.dtype) for t in given[:arguments]], given[arguments:])
        return _empty(given[0], op.forward(spec), outputs)

    # A backward call: gradients of the results, arguments and outputs where they are saved, and what the spec says.
    reads = (*gradients_of_results(op), *op.arguments, *outputs)
    read = ", ".join(f"Tensor? {name}" for name in reads)
    shapes = "".join(f", SymInt[]? {name}_shape, ScalarType? {name}_dtype" for name in op.arguments)
    made = [f"d{name}" for name in op.arguments if name not in op.indices]
    gradients = ", ".join(["Tensor"] * len(made))

    def told_of(given: Sequence[Any]) -> tuple[Shapes, frozenset[str], Options]:
        told, rest = given[: 2 * arguments], given[2 * arguments :]
        params = tuple([None if told[i] is None else (tuple(told[i]), told[i + 1]) for i in range(0, len(told), 2)])
        wanted = frozenset([name for name, want in zip(op.arguments, rest[0], strict=True) if want])
        return params, wanted, rest[1:]

    def run_backward(*given: Any) -> tuple[Tensor, ...]:
        params, wanted, options = told_of(given[len(reads) :])
        like = next(t for t in given if t is not None)
        backward = _backward(op, params, like.device, wanted, *options)
        by_name = dict(zip(reads, given, strict=False))
        results = dict(zip(backward.makes, backward.run([by_name[name] for name in backward.names]), strict=True))
        return tuple(absent(like) if (t := results.get(name)) is None else t for name in made)

    def fake_backward(*given: Any) -> tuple[Tensor, ...]:
        params, wanted, options = told_of(given[len(reads) :])
        spec = _spec(op, params, options)
        names = _wanted_names(op, spec, wanted)
        like = next(t for t in given if t is not None)
        return _empty(like, op.backward(spec, wanted), [name if name in names else None for name in made])

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        given = inputs[:arguments]
        ctx.told = [part for t in given for part in ((None, None) if t is None else (t.shape, t.dtype))]
        ctx.options = inputs[arguments:]
        params = [None if t is None else (t.shape, t.dtype) for t in given]
        spec = _spec(op, params, ctx.options)
        reads = op.backward(spec, differentiable(op))
        saved = saved_names(op, reads)
        ctx.names = (*gradients_of_results(op), *saved)
        ctx.reads = reads.inputs
        ctx.gradients = gradient_names(op, spec)
        by_name = dict(zip((*op.arguments, *outputs), (*given, *output), strict=True))
        ctx.save_for_backward(*(by_name[name] for name in saved))

    def backward(ctx: Any, *came: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[:arguments]
        by_name = dict(zip(ctx.names, (*came[: len(op.results)], *ctx.saved_tensors), strict=True))
        wanted = [bool(need) and name not in op.indices for name, need in zip(op.arguments, needs, strict=True)]
        given = [by_name[name] if name in ctx.reads else None for name in reads]
        results = backward_operator(*given, *ctx.told, wanted, *ctx.options)
        found: Mapping[str, Tensor] = dict(zip(made, results, strict=True))
        return (
            *(found[name] if want else None for name, want in zip(ctx.gradients, wanted, strict=True)),
            *(None for _ in ctx.options),
        )

    name = f"retrograd::{op.name}"
    forward_op = torch.library.custom_op(name, run, mutates_args=(), schema=f"({tensors}{options}) -> ({returned})")
    backward_op = torch.library.custom_op(
        f"{name}_backward",
        run_backward,
        mutates_args=(),
        schema=f"({read}{shapes}, bool[] wanted{options}) -> ({gradients})",
    )
    forward_op.register_fake(fake)
    backward_op.register_fake(fake_backward)
    forward_op.register_autograd(backward, setup_context=setup_context)
    backward_operator = getattr(torch.ops.retrograd, f"{op.name}_backward")
    operator: Callable[..., tuple[Tensor, ...]] = getattr(torch.ops.retrograd, op.name)
    return operator


def _empty(like: Tensor, call: Call, names: Sequence[str | None]) -> tuple[Tensor, ...]:
    there = {array.name: array for array in call.outputs}
    return tuple(
        like.new_empty(there[name].shape, dtype=DTYPES[there[name].dtype]) if name in there else absent(like)
        for name in names
    )
