"""Calls under `jax.jit` on a mesh whose axes XLA divides: each device runs the kernels on its part.

JAX's decoder of shardings is not public API, so it is used only in this file.

XLA cannot look into a kernel. `custom_partitioning` tells it along which axes a pass may be cut: those that the op
declares as `independent`. What lacks such an axis, as the gradient of a weight, is summed over the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import jax
from jax._src.sharding_impls import parse_flatten_op_sharding
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule, custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ..letters import letters_of
from ..op import Call
from ..spec import CallSpec, Param, options

Run = Callable[..., list[Any]]
Names = tuple[str, ...]  # axes of a mesh


def partitioned(call: Call, spec: CallSpec, run: Run, again: Callable[[CallSpec], Run]) -> Run:
    """The function `run` of a pass's inputs, of which XLA may give each device a part.

    Args:
        call: the pass.
        spec: of the whole call.
        run: returns the outputs.
        again: `run` of a part of the call, from its spec.
    """
    pieces = Pieces(call, spec)

    def whole(*arrays: Any) -> list[Any]:
        return run(*arrays)

    def partition(mesh: jax.sharding.Mesh, given: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        along = pieces.along(
            mesh, [(name, x.sharding) for name, x in zip(pieces.names, [*given, *results], strict=True)]
        )

        def part(*arrays: Any) -> list[Any]:
            found = again(pieces.part_of(mesh, along))(*arrays)
            return [_total(x, pieces.missing(array.name, along)) for x, array in zip(found, call.outputs, strict=True)]

        shardings = [NamedSharding(mesh, pieces.placed(name, along)) for name in pieces.names]
        return mesh, part, shardings[len(given) :], tuple(shardings[: len(given)])

    function = custom_partitioning(whole)
    function.def_partition(partition=partition, sharding_rule=pieces.rule(), decode_shardings=False)
    return function


class Pieces:
    """The axes along which a pass is cut.

    Attributes:
        names: of its inputs and outputs.
    """

    def __init__(self, call: Call, spec: CallSpec) -> None:
        self.call, self.spec = call, spec
        self.names = (*call.inputs, *(array.name for array in call.outputs))
        self._letters = {name: self._of(name) for name in {*spec.arguments, *spec.computes(), *self.names}}

    def rule(self) -> SdyShardingRule:
        """For XLA: axes of one independent letter are one factor, all others are whole on each device.

        An axis that is longer than another of its letter, as heads are more than key heads, has a second factor.
        """
        shortest: dict[str, int] = {}
        for name in self.names:
            for letter, size in self._axes(name):
                if letter is not None:
                    shortest[letter] = min(size, shortest.get(letter, size))
        cut = {letter: f"cut{number}" for number, letter in enumerate(shortest)}
        whole: list[str] = []
        second: dict[str, int] = {}  # factors that are no axis of their own, and their sizes

        def factor(letter: str | None, size: int) -> str | CompoundFactor:
            if letter is not None and size == shortest[letter]:
                return cut[letter]
            whole.append(f"whole{len(whole)}")
            if letter is None:
                return whole[-1]
            second[whole[-1]] = size // shortest[letter]
            return CompoundFactor(cut[letter], whole[-1])

        mappings = [ArrayMapping(*(factor(*axis) for axis in self._axes(name))) for name in self.names]
        count = len(self.call.inputs)
        sizes: dict[str, Any] = {"need_replication_factors": tuple(whole), **second}
        return SdyShardingRule(tuple(mappings[:count]), tuple(mappings[count:]), **sizes)

    def along(self, mesh: jax.sharding.Mesh, shardings: Iterable[tuple[str, Any]]) -> dict[str, Names]:
        """Each letter along which the call is cut -> the mesh's axes, as XLA has chosen them for an array."""
        found: dict[str, Names] = {}
        used: set[str] = set()
        for name, sharding in shardings:
            for letter, axes in zip(self._letters[name], spec_of(mesh, sharding), strict=False):
                taken = (axes,) if isinstance(axes, str) else tuple(axes or ())
                if letter is not None and letter not in found and taken and used.isdisjoint(taken):
                    found[letter] = taken
                    used.update(taken)
        found = {letter: axes for letter, axes in found.items() if self._fits(mesh, {letter: axes})}
        return found if self._fits(mesh, found) else {}

    def _fits(self, mesh: jax.sharding.Mesh, along: Mapping[str, Names]) -> bool:
        """Whether the parts are equal, and each computes what its device should have."""
        for name in self._letters:
            if any(size % _count(mesh, along.get(letter, ())) for letter, size in self._axes(name) if letter):
                return False
        part = self.part_of(mesh, along)
        return all(part[name].shape == self._local(name, mesh, along) for name in part.computes())

    def part_of(self, mesh: jax.sharding.Mesh, along: Mapping[str, Names]) -> Any:
        """The checked call of a part."""

        def of(name: str) -> Param | None:
            param = self.spec[name]
            return None if param is None else replace(param, shape=self._local(name, mesh, along))

        own = {name: getattr(self.spec, name) for name in options(type(self.spec))}
        return self.spec.of({name: of(name) for name in self.spec.arguments}, own)

    def placed(self, name: str, along: Mapping[str, Names]) -> PartitionSpec:
        """How an array is cut."""
        return PartitionSpec(*(along.get(letter) if letter is not None else None for letter in self._letters[name]))

    def missing(self, name: str, along: Mapping[str, Names]) -> Names:
        """The mesh's axes over which a gradient has to be summed: along which the call is cut, and it is not."""
        if name in self.spec.arguments or name in self.spec.computes():
            return ()
        return tuple(axis for letter, axes in along.items() if letter not in self._letters[name] for axis in axes)

    def _of(self, name: str) -> tuple[str | None, ...]:
        if getattr(self.spec, "dropout_p", 0.0):  # it counts rows and heads
            return (None,) * len(self._shape(name))
        letters = letters_of(self.spec, self._declared(name))
        independent = self.spec.independent
        return tuple(x if x is not None and x.partition("[")[0] in independent else None for x in letters)

    def _axes(self, name: str) -> Iterable[tuple[str | None, int]]:
        return zip(self._letters[name], self._shape(name), strict=True)

    def _declared(self, name: str) -> str:
        known = {*self.spec.arguments, *self.spec.computes()}
        return name if name in known else name.removeprefix("d")

    def _shape(self, name: str) -> tuple[int, ...]:
        param = self.spec[self._declared(name)]
        assert param is not None
        return param.shape

    def _local(self, name: str, mesh: jax.sharding.Mesh, along: Mapping[str, Names]) -> tuple[int, ...]:
        return tuple(
            size if letter is None else size // _count(mesh, along.get(letter, ())) for letter, size in self._axes(name)
        )


def spec_of(mesh: jax.sharding.Mesh, sharding: Any) -> Sequence[Any]:
    """The mesh's axes along each axis of an array; none where XLA has cut along a part of one."""
    try:
        return tuple(parse_flatten_op_sharding(sharding._hlo_sharding, mesh)[0])
    except (ValueError, LookupError, StopIteration, NotImplementedError, AttributeError):
        return ()


def _count(mesh: jax.sharding.Mesh, axes: Names) -> int:
    return prod(mesh.shape[axis] for axis in axes)


def _total(x: Any, axes: Names) -> Any:
    return jax.lax.psum(x, axes) if axes else x
