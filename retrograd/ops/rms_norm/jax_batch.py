"""How a batch of rms_norm calls folds into one call, for `jax.vmap`.

Where no parameter differs between the examples, the batch is one more row dimension. Where one does, or a gradient of
one is wanted for each example, the batch joins the heads: each example becomes a head (or a group) with its own weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from retrograd.core.op import Param

from .spec import Spec

TILES = frozenset({"x", "residual", "gate", "y", "sum", "s", "dy", "dsum", "dx", "dresidual", "dgate"})
PARAMETERS = frozenset({"weight", "bias", "dweight", "dbias"})


@dataclass(frozen=True)
class Fold:
    """`size` calls of `spec` as one.

    Attributes:
        spec: one call.
        size: calls in the batch.
        joins_heads: whether the batch joins the heads; it joins the rows otherwise.
    """

    spec: Spec
    size: int
    joins_heads: bool

    @property
    def folded(self) -> Spec:
        """The one call."""
        spec = self.spec

        def tile(param: Param | None) -> Param | None:
            return None if param is None else Param(self._tile_shape(), param.dtype)

        def parameter(param: Param | None) -> Param | None:
            return None if param is None else Param(self._parameter_shape(param), param.dtype)

        x = tile(spec.x)
        assert x is not None
        options = spec.options
        if self.joins_heads and not spec.per_head:
            options = replace(options, group_size=spec.N)
        return Spec(x, parameter(spec.weight), parameter(spec.bias), tile(spec.residual), tile(spec.gate), options)

    def into(self, name: str, array: Any, axis: int | None) -> Any:
        """An input of the calls, with its batch axis or None, as the input of the one call."""
        if name in PARAMETERS and not self.joins_heads:
            return array
        batched = (
            jnp.moveaxis(array, axis, 0) if axis is not None else jnp.broadcast_to(array, (self.size, *array.shape))
        )
        if name in PARAMETERS:
            return batched.reshape(self._parameter_shape(Param(array.shape if axis is None else batched.shape[1:], "")))
        if not self.joins_heads:
            return batched.reshape(self._tile_shape()) if name in TILES else batched.reshape(-1)
        if name in TILES:
            return jnp.moveaxis(batched, 0, -self._tail - 1).reshape(self._tile_shape())
        return jnp.moveaxis(batched.reshape(self.size, self.spec.rows, self.spec.heads), 0, 1).reshape(-1)

    def out_of(self, name: str, array: Any, shape: tuple[int, ...]) -> Any:
        """A result of the one call as the calls' results, the batch axis first; `shape` is that of one result."""
        if not self.joins_heads or name in PARAMETERS:
            return array.reshape(self.size, *shape)
        spec = self.spec
        if name in TILES:
            split = array.reshape(*spec.lead, self.size, *spec.x.shape[len(spec.lead) :])
            return jnp.moveaxis(split, -self._tail - 1, 0)
        return jnp.moveaxis(array.reshape(spec.rows, self.size, spec.heads), 1, 0).reshape(self.size, *shape)

    @property
    def _tail(self) -> int:
        return 2 if self.spec.per_head else 1

    def _tile_shape(self) -> tuple[int, ...]:
        shape = self.spec.x.shape
        if not self.joins_heads:
            return (self.size, *shape)
        at = len(shape) - self._tail
        return (*shape[:at], self.size * shape[at], *shape[at + 1 :])

    def _parameter_shape(self, param: Param) -> tuple[int, ...]:
        if not self.joins_heads:
            return param.shape
        if self.spec.per_head:
            return (self.size * param.shape[0], param.shape[1])
        return (self.size * param.shape[-1],)


def fold_of(spec: Spec, names: Sequence[str], axes: Sequence[int | None], size: int, parameter_gradients: bool) -> Fold:
    """The fold for a call whose inputs `names` have batch axes `axes`."""
    differs = any(axis is not None for name, axis in zip(names, axes, strict=True) if name in PARAMETERS)
    wanted = parameter_gradients and (spec.weight is not None or spec.bias is not None)
    return Fold(spec, size, differs or wanted)
