"""Arrays distributed over several devices: on a mesh with explicit axes, and within `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ..op import Op
from ..spec import CallSpec
from .arguments import params_of


def vary_alike(arrays: Sequence[Any]) -> list[Any]:
    """Mark all arrays as varying over each manual axis of `shard_map` over which one of them does; None stays None.

    The gradient of an array that is the same on all devices, such as a weight, is then summed over the devices.
    """
    axes = frozenset[str]().union(*(varying(array) for array in arrays if array is not None))
    return [None if array is None else vary_over(axes, array) for array in arrays]


def varying(array: Any) -> frozenset[str]:
    """The manual axes over which an array varies."""
    axes: frozenset[str] = jax.typeof(array).mat.varying
    return axes


def vary_over(axes: frozenset[str], array: Any) -> Any:
    """The array, marked as varying over these manual axes too."""
    more = tuple(sorted(axes - varying(array)))
    return jax.lax.pcast(array, more, to="varying") if more else array


def explicit(array: Any) -> NamedSharding | None:
    """How an array is sharded over explicit axes of a mesh; None where it is not."""
    # numpy's arrays have no sharding.
    sharding: NamedSharding | None = getattr(getattr(array, "aval", array), "sharding", None)
    return sharding if sharding is not None and any(sharding.spec) else None


def check_rows(spec: CallSpec, arrays: Mapping[str, Any]) -> None:
    """Raise for arrays that are sharded over explicit axes of a mesh in another way than by rows, and all alike."""
    sharded, rows = _sharded(arrays), _with_rows(spec)
    for name, own in sharded.items():
        first = next(iter(sharded.values()))
        alike = first.spec[0] is not None and own.spec[0] == first.spec[0] and not any(own.spec[1:])
        if not alike or name not in rows or arrays[name].ndim < 2:
            raise bad_sharding(spec.op, name, own)


def _sharded(arrays: Mapping[str, Any]) -> dict[str, NamedSharding]:
    return {name: of for name, array in arrays.items() if array is not None and (of := explicit(array))}


def _with_rows(spec: CallSpec) -> Container[str]:
    """The arrays whose first axis is one of rows, which may lie on several devices."""
    return next((fold.axes for fold in spec.folds(1)), {})


def by_rows(op: Op, spec: Any, arrays: Mapping[str, Any], call: Callable[..., Any]) -> Any:
    """`call(spec, *arrays)`; where rows are sharded over explicit axes of a mesh, on each device with its own rows.

    Raises:
        ValueError: for arrays that are sharded in another way.
    """
    sharded, rows = _sharded(arrays), _with_rows(spec)
    if not sharded:
        return call(spec, *arrays.values())
    check_rows(spec, arrays)
    first = next(iter(sharded.values()))
    mesh, split = first.mesh, PartitionSpec(first.spec[0])
    specs = tuple(split if name in rows else PartitionSpec() for name in arrays)
    resharded = [
        None if array is None else jax.sharding.reshard(array, NamedSharding(mesh, spec))
        for array, spec in zip(arrays.values(), specs, strict=True)
    ]
    options = {name: getattr(spec, name) for name in op.options}

    def part(*own: Any) -> Any:
        return call(op.spec(params_of(dict(zip(op.arguments, own, strict=True))), options), *own)

    return jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=split)(*resharded)


def bad_sharding(op: str, name: str, own: NamedSharding) -> ValueError:
    """An array that is sharded over explicit axes of a mesh, but not only along its rows."""
    expected = "its first axis alone sharded, and alike in all arrays; within jax.shard_map it may be cut in any way"
    return ValueError(f"{op}: {name} is sharded as {own.spec}, expected {expected}")
