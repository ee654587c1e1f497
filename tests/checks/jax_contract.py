"""What every op promises under JAX's transformations, one function for each promise; each raises AssertionError.

Results are compared by their errors, not bitwise: on a CPU, XLA fuses the portable path differently under each
transformation, so the last bits differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from torch import Tensor

from retrograd.core.jax.launch import TARGET
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo, spec_of
from retrograd.testing import jax_call
from retrograd.testing.budget import FEW_DRAWS, SLACK, draws_for
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import Function, differentiable, draw, plain_and_exact

from .contract import drawn
from .parts import batch_axis

EXAMPLES = 3  # in a vmapped batch
SHARED = jax.sharding.PartitionSpec()


def check_transformed(info: OpInfo, case: Case, transform: str, device: str, seed: int) -> None:
    """Outputs and gradients are within the error budget under a transformation that keeps their definition."""
    both = jax_call.forward_and_backward(TRANSFORMS[transform](info, case), tuple(case.inputs), {})
    draws = []
    for i in range(min(draws_for(case), FEW_DRAWS)):
        inputs, gradients = drawn(info, case, device, seed * 1000 + i)
        with jax.disable_jit(transform == "unjitted"):
            results, found = both(
                [jax_call.to_jax(t) for t in inputs.values()], [jax_call.to_jax(g) for g in gradients]
            )
        draws.append(
            (
                jax_call.named(results, jax_call.wanted(inputs), found, gradients[0].device),
                *plain_and_exact(info.reference, case, inputs, gradients, info.plain),
            )
        )
    assert_within_budget(draws, f"{info.name}, {case.name}: {transform}", SLACK)


def with_options(info: OpInfo, case: Case) -> Function:
    """The op with the case's options bound, as a function of arrays: the first positional, the others by name."""
    function = info.jax()

    def call(first: jax.Array, **rest: jax.Array) -> Any:
        return function(first, **rest, **case.options)

    return call


def eager(info: OpInfo, case: Case) -> Function:
    """No transformation: executed op by op."""
    return with_options(info, case)


def checkpointed(info: OpInfo, case: Case) -> Function:
    """`jax.checkpoint` that saves nothing: the backward pass recomputes the forward pass."""
    policy = jax.checkpoint_policies.nothing_saveable
    jitted: Function = jax.jit(jax.checkpoint(with_options(info, case), policy=policy))
    return jitted


def scanned(info: OpInfo, case: Case) -> Function:
    """In the body of a `lax.scan` of one step."""
    function = with_options(info, case)

    def scan(first: jax.Array, **rest: jax.Array) -> Any:
        def body(carry: None, xs: Any) -> tuple[None, Any]:
            return carry, function(xs, **rest)

        results = jax.lax.scan(body, None, first[None])[1]
        return jax.tree.map(lambda array: array[0], results)

    jitted: Function = jax.jit(scan)
    return jitted


def unjitted(info: OpInfo, case: Case) -> Function:
    """No transformation; called under `jax.disable_jit`."""
    return with_options(info, case)


def sharded(info: OpInfo, case: Case) -> Function:
    """In `shard_map` over a mesh of one device; the first argument is sharded by rows, the others are replicated."""
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    names = tuple(case.inputs)
    specs = tuple(jax.sharding.PartitionSpec("data") if name == names[0] else SHARED for name in names)

    def positional(*arrays: jax.Array) -> Any:
        return jax_call.outputs(info.jax(), names, arrays, case.options)

    mapped = jax.shard_map(positional, mesh=mesh, in_specs=specs, out_specs=specs[0])

    def call(first: jax.Array, **rest: jax.Array) -> Any:
        return mapped(first, *(rest[name] for name in names[1:]))  # jit sorts them

    jitted: Function = jax.jit(call)
    return jitted


def meshed(info: OpInfo, case: Case) -> Function:
    """On a mesh of one device with an explicit axis, along which the rows of the arguments are sharded."""
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Explicit,), devices=jax.devices()[:1])
    function = with_options(info, case)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, SHARED)

    def has_rows(name: str) -> bool:
        return info.alone(case) and batch_axis(info, case, name) == 0 and len(case.inputs[name].shape) > 1

    def call(first: jax.Array, **rest: jax.Array) -> Any:
        names = tuple(case.inputs)
        own = {name: rows if has_rows(name) else whole for name in names}
        placed = {name: jax.device_put(array, own[name]) for name, array in {names[0]: first, **rest}.items()}
        return function(placed.pop(names[0]), **placed)

    jitted: Function = jax.jit(call)
    return jitted


TRANSFORMS = {function.__name__: function for function in (eager, unjitted, checkpointed, scanned, sharded, meshed)}


def check_vmap(info: OpInfo, case: Case, shared: bool, device: str, seed: int) -> None:
    """Every example of a vmapped batch has the outputs and gradients it has alone.

    Args:
        info: the op.
        case: one example.
        shared: if True, arguments without a batch axis are the same for all examples, and the others are batched along
            their last axis; if False, all but integer arguments are batched along a leading axis.
        device: `cpu` or `cuda`.
        seed: of the draws.
    """
    draws = []
    own = [name for name, tensor in draw(case, device, seed).items() if differentiable(tensor)]
    batched = [name for name in own if not shared or name in set(info.batch_axis) - case.shared]
    axes = [(-1 if shared else 0) if name in batched else None for name in case.inputs]
    both = jax_call.forward_and_backward(with_options(info, case), tuple(case.inputs), {})
    run = jax.jit(jax.vmap(both, in_axes=(axes, 0)))
    for i in range(-(-min(draws_for(case), FEW_DRAWS) // EXAMPLES)):
        examples = [drawn(info, case, device, seed * 1000 + EXAMPLES * i + j) for j in range(EXAMPLES)]
        common = examples[0][0]
        for inputs, _ in examples:
            inputs.update({name: common[name] for name in common if name not in batched})
        arrays = [stacked([inputs[name] for inputs, _ in examples], a) for name, a in zip(common, axes, strict=True)]
        gradients = [stacked(list(several), 0) for several in zip(*(g for _, g in examples), strict=True)]
        results, found = run(arrays, gradients)
        for j, (inputs, incoming) in enumerate(examples):
            result = jax_call.named([a[j] for a in results], own, [a[j] for a in found], incoming[0].device)
            draws.append((result, *plain_and_exact(info.reference, case, inputs, incoming, info.plain)))
    where = f"{info.name}, {case.name}: vmap, {'shared parameters' if shared else 'all batched'}"
    assert_within_budget(draws, where, SLACK)


def stacked(tensors: Sequence[Tensor], axis: int | None) -> jax.Array:
    """The tensors stacked along a new axis; the first tensor if `axis` is None."""
    arrays = [jax_call.to_jax(tensor) for tensor in tensors]
    return arrays[0] if axis is None else jnp.stack(arrays, axis)


def check_export(info: OpInfo, case: Case, device: str, seed: int) -> None:
    """Outputs of a function exported by `jax.export` are within their error budget.

    Where no kernels run, it is exported for every size of batch and time.
    """
    names = tuple(case.inputs)
    function = jax.jit(lambda *arrays: jax_call.outputs(info.jax(), names, arrays, case.options))
    draws = []
    for i in range(draws_for(case)):
        inputs, gradients = drawn(info, case, device, seed * 1000 + i)
        arrays = [jax_call.to_jax(tensor) for tensor in inputs.values()]
        if i == 0:
            # jax does not guarantee compatibility of the custom call that launches Triton kernels; it must be allowed.
            unchecked = [jax.export.DisabledSafetyCheck.custom_call(TARGET)]
            sizes = ["..."] * len(arrays) if device == "cuda" else open_sizes(info, case)
            shapes = jax.export.symbolic_args_specs(arrays, sizes)
            exported = jax.export.export(function, disabled_checks=unchecked)(*shapes)
        result = jax_call.named(exported.call(*arrays), (), (), gradients[0].device)
        draws.append((result, *plain_and_exact(info.reference, case, inputs, gradients, info.plain)))
    assert_within_budget(draws, f"{info.name}, {case.name}: exported")


def open_sizes(info: OpInfo, case: Case) -> list[str]:
    """The shape of each argument as `jax.export` writes it: with a letter for every size of batch and time but 1.

    Equal sizes have one letter, since they may have to be equal.
    """
    assert info.op is not None
    spec = spec_of(info.op, case)
    words = {"batch", "time", "queries", "keys", *(() if spec.packed else ("sequences",))}
    axes = {letter: spec.axes_of(letter) for letter, named in spec.letters.items() if named.word in words}
    if not axes:  # any number of axes of rows
        axes = {"rows": {name: 0 for name in info.batch_axis if len(spec.first.shape) > 1}}
    shapes = {name: [str(size) for size in tensor.shape] for name, tensor in case.inputs.items()}
    letters: dict[str, str] = {"1": "1"}
    for letter, places in axes.items():
        for name, axis in places.items():
            if name in shapes and shapes[name][axis].isdigit():
                shapes[name][axis] = letters.setdefault(shapes[name][axis], letter)
    return [", ".join([*shape, ""]) for shape in shapes.values()]
