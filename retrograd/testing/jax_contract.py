"""What every op promises to JAX's transformations, one function a promise; each raises AssertionError.

Results are judged by errors: on a CPU, XLA fuses the portable path anew in each of these settings, so their last bits
differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.jax.launch import TARGET
from retrograd.core.room import Room

from . import jax_call
from .budget import FEW_DRAWS, SLACK, draws_for
from .compare import assert_within_budget
from .contract import drawn
from .draw import Function, differentiable, draw, plain_and_exact
from .parts import batch_axis

EXAMPLES = 3  # in a vmapped batch
SHARED = jax.sharding.PartitionSpec()


def check_transformed(room: Room, case: Case, transform: str, device: str, seed: int) -> None:
    """Under a transformation that keeps a function's meaning, it has the same outputs and gradients."""
    both = jax_call.forward_and_backward(TRANSFORMS[transform](room, case), tuple(case.inputs), {})
    draws = []
    for i in range(min(draws_for(case), FEW_DRAWS)):
        inputs, gradients = drawn(room, case, device, seed * 1000 + i)
        with jax.disable_jit(transform == "unjitted"):
            made, found = both([jax_call.to_jax(t) for t in inputs.values()], [jax_call.to_jax(g) for g in gradients])
        draws.append(
            (
                jax_call.named(made, jax_call.wanted(inputs), found, gradients[0].device),
                *plain_and_exact(room.reference, case, inputs, gradients, room.plain),
            )
        )
    assert_within_budget(draws, f"{room.name}, {case.name}: {transform}", SLACK)


def with_options(room: Room, case: Case) -> Function:
    """The op with the case's options, a function of arrays; named arguments, the first positional."""
    function = room.jax()

    def given(first: jax.Array, **rest: jax.Array) -> Any:
        return function(first, **rest, **case.options)

    return given


def eager(room: Room, case: Case) -> Function:
    """No transformation: op by op."""
    return with_options(room, case)


def checkpointed(room: Room, case: Case) -> Function:
    """`jax.checkpoint` that keeps nothing: the backward pass computes the forward pass again."""
    policy = jax.checkpoint_policies.nothing_saveable
    made: Function = jax.jit(jax.checkpoint(with_options(room, case), policy=policy))
    return made


def scanned(room: Room, case: Case) -> Function:
    """In the body of a `lax.scan` of one step."""
    function = with_options(room, case)

    def scan(first: jax.Array, **rest: jax.Array) -> Any:
        def body(carry: None, xs: Any) -> tuple[None, Any]:
            return carry, function(xs, **rest)

        made = jax.lax.scan(body, None, first[None])[1]
        return jax.tree.map(lambda array: array[0], made)

    jitted: Function = jax.jit(scan)
    return jitted


def unjitted(room: Room, case: Case) -> Function:
    """No transformation, to be run under `jax.disable_jit`."""
    return with_options(room, case)


def sharded(room: Room, case: Case) -> Function:
    """In `shard_map` over a mesh of one device, which has all rows of the first argument; it shares the others."""
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    names = tuple(case.inputs)
    specs = tuple(jax.sharding.PartitionSpec("data") if name == names[0] else SHARED for name in names)

    def positional(*arrays: jax.Array) -> Any:
        return jax_call.outputs(room.jax(), names, arrays, case.options)

    mapped = jax.shard_map(positional, mesh=mesh, in_specs=specs, out_specs=specs[0])

    def given(first: jax.Array, **rest: jax.Array) -> Any:
        return mapped(first, *(rest[name] for name in names[1:]))  # jit sorts them

    jitted: Function = jax.jit(given)
    return jitted


def meshed(room: Room, case: Case) -> Function:
    """On a mesh of one device whose axis is explicit, along which the rows of the arguments lie."""
    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Explicit,), devices=jax.devices()[:1])
    function = with_options(room, case)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, SHARED)

    def has_rows(name: str) -> bool:
        return batch_axis(room, case, name) == 0 and len(case.inputs[name].shape) > 1

    def given(first: jax.Array, **rest: jax.Array) -> Any:
        names = tuple(case.inputs)
        own = {name: rows if has_rows(name) else whole for name in names}
        put = {name: jax.device_put(array, own[name]) for name, array in {names[0]: first, **rest}.items()}
        return function(put.pop(names[0]), **put)

    jitted: Function = jax.jit(given)
    return jitted


TRANSFORMS = {function.__name__: function for function in (eager, unjitted, checkpointed, scanned, sharded, meshed)}


def check_vmap(room: Room, case: Case, shared: bool, device: str, seed: int) -> None:
    """Every example of a vmapped batch has the outputs and gradients it has alone.

    Args:
        room: the op.
        case: one example.
        shared: the arguments without a batch axis are the same for all examples, and the others are batched along
            their last axis; otherwise every argument has a leading axis of examples, but for those of integers.
        device: `cpu` or `cuda`.
        seed: of the draws.
    """
    draws = []
    own = [name for name, tensor in draw(case, device, seed).items() if differentiable(tensor)]
    batched = [name for name in own if not shared or name in set(room.batch_axis) - case.shared]
    axes = [(-1 if shared else 0) if name in batched else None for name in case.inputs]
    both = jax_call.forward_and_backward(with_options(room, case), tuple(case.inputs), {})
    run = jax.jit(jax.vmap(both, in_axes=(axes, 0)))
    for i in range(-(-min(draws_for(case), FEW_DRAWS) // EXAMPLES)):
        examples = [drawn(room, case, device, seed * 1000 + EXAMPLES * i + j) for j in range(EXAMPLES)]
        common = examples[0][0]
        for inputs, _ in examples:
            inputs.update({name: common[name] for name in common if name not in batched})
        arrays = [stacked([inputs[name] for inputs, _ in examples], a) for name, a in zip(common, axes, strict=True)]
        gradients = [stacked(list(given), 0) for given in zip(*(g for _, g in examples), strict=True)]
        made, found = run(arrays, gradients)
        for j, (inputs, came_in) in enumerate(examples):
            result = jax_call.named([a[j] for a in made], own, [a[j] for a in found], came_in[0].device)
            draws.append((result, *plain_and_exact(room.reference, case, inputs, came_in, room.plain)))
    where = f"{room.name}, {case.name}: vmap, {'shared parameters' if shared else 'all batched'}"
    assert_within_budget(draws, where, SLACK)


def stacked(tensors: Sequence[Tensor], axis: int | None) -> jax.Array:
    """The tensors along a new axis; the first alone where there is none."""
    arrays = [jax_call.to_jax(tensor) for tensor in tensors]
    return arrays[0] if axis is None else jnp.stack(arrays, axis)


def check_export(room: Room, case: Case, device: str, seed: int) -> None:
    """Exported by `jax.export`, the outputs keep their error budget."""
    names = tuple(case.inputs)
    function = jax.jit(lambda *arrays: jax_call.outputs(room.jax(), names, arrays, case.options))
    draws = []
    for i in range(draws_for(case)):
        inputs, gradients = drawn(room, case, device, seed * 1000 + i)
        arrays = [jax_call.to_jax(tensor) for tensor in inputs.values()]
        if i == 0:
            # jax gives no guarantee for the call that launches Triton's kernels; whoever exports has to accept that.
            unchecked = [jax.export.DisabledSafetyCheck.custom_call(TARGET)]
            exported = jax.export.export(function, disabled_checks=unchecked)(*arrays)
        result = jax_call.named(exported.call(*arrays), (), (), gradients[0].device)
        draws.append((result, *plain_and_exact(room.reference, case, inputs, gradients, room.plain)))
    assert_within_budget(draws, f"{room.name}, {case.name}: exported")
