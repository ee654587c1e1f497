"""Attention without a GPU kernel: one source for PyTorch and JAX, forward and backward.

All queries meet one tile of keys after another, so memory is linear in the number of keys. The products have the size
of a tile whatever the number of steps, and tiles that a query does not see change nothing: a query's bits depend on
nothing but its own sequence up to its last visible key.

Arrays are (batch, G, H / G, query tiles, TILE, TILE or head size); those of one tile of keys have query tiles and
heads of a group as axes of size 1. Formulas: README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from retrograd.core.packed import runs
from retrograd.core.xp import Namespace, aligned

from .dropout import kept, kept_in_runs
from .op import FORMS, Spec
from .tiles import TILE, Tiles

HEADS, QUERIES = (1, 2), (3, 4)  # axes


def forward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """out and lse."""
    call = Pairs(xp, spec, arrays)
    q = call.of_queries("q")
    rows = (*q.shape[:-1], 1)
    largest, total = _start(call, q, rows)
    out = xp.zeros(q, (*q.shape[:-1], spec.value_size), spec.compute_dtype)

    def step(carry: Any, tile: Any) -> Any:
        largest, total, out = carry
        scores, _ = call.scores(q, tile)
        more = xp.maximum(largest, xp.max(scores))
        safe = xp.where(more == -inf, 0, more)
        before, p = xp.exp(largest - safe), xp.exp(scores - safe)
        total = total * before + xp.sum(p, -1)[..., None]
        added = call.own(xp.matmul(p * call.dropped(tile), tile["v"]), tile)
        return (more, total, out * before + added), ()

    (largest, total, out), _ = _scan(call, step, (largest, total, out))
    some = total > 0
    total = xp.where(some, total, 1)
    lse = call.inside(xp.where(some, largest + xp.log(total), -inf))
    return {"out": call.joined(out / total, spec.q.dtype), "lse": call.joined_rows(lse)}


def backward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """The gradient of each present argument; the formulas are in README.md."""
    call = Pairs(xp, spec, arrays)
    q, out, dout = call.of_queries("q"), call.of_queries("out"), call.of_queries("dout")
    lse = call.of_rows("lse")
    lse = xp.where(lse == -inf, 0, lse)
    # The gradient at the sum of exponentials of each query: <dout, out> - dlse.
    # By the same products as those with v, so that what cancels with one visible key cancels exactly.
    products = xp.matmul(dout, _turned(xp, out))
    same = xp.arange(q, TILE)[:, None] == xp.arange(q, TILE)[None]
    delta = xp.sum(xp.where(same, products, 0), -1)[..., None]
    if "dlse" in arrays:
        delta = delta - call.of_rows("dlse")
    delta = xp.where(call.taken, delta, 0)
    slopes = xp.zeros(q, (*q.shape[:-1], 1), spec.compute_dtype)
    shared = call.of_shared_bias(q)

    def step(carry: Any, tile: Any) -> Any:
        dq, dslopes, dshared = carry
        scores, slope = call.scores(q, tile)
        p = xp.exp(scores - lse)
        factors = call.dropped(tile)
        dscores = call.own(p * (xp.matmul(dout, _turned(xp, tile["v"])) * factors - delta), tile)
        dv = _in_order(xp, call.own(xp.matmul(_turned(xp, p * factors), dout), tile))
        dbias: tuple[Any, ...] = ()
        if spec.bias is not None:
            summed = call.as_bias(dscores)
            dshared, dbias = (dshared, (summed,)) if call.by_key else (dshared + summed, ())
        if spec.alibi_slopes is not None:
            dslopes = dslopes - xp.sum(dscores * call.distance(tile), -1)[..., None]
        dproducts = dscores if slope is None else call.own(dscores * slope, tile)
        dk = _in_order(xp, call.own(xp.matmul(_turned(xp, dproducts), q), tile))
        dq = dq + call.own(xp.matmul(dproducts, tile["k"]), tile)
        return (dq, dslopes, dshared), (dk, dv, *dbias)

    nothing = xp.zeros(q, q.shape, spec.compute_dtype)
    (dq, dslopes, dshared), (dk, dv, *dbias) = _scan(call, step, (nothing, slopes, shared))
    gradients = {
        "dq": call.joined(dq * spec.factor, spec.q.dtype),
        "dk": call.joined_keys(dk * spec.factor),
        "dv": call.joined_keys(dv),
    }
    if spec.bias is not None:
        gradients["dbias"] = call.joined_bias(dbias[0] if call.by_key else dshared)
    if spec.alibi_slopes is not None:
        gradients["dalibi_slopes"] = call.joined_slopes(dslopes)
    if spec.sinks is not None:
        of_sink = xp.where(call.taken, xp.exp(call.of_heads(arrays["sinks"]) - lse), 0)
        gradients["dsinks"] = call.summed_heads(-of_sink * delta)
    params = spec.params(f"d{name}" for name in spec.arguments if f"d{name}" in gradients)
    return {name: xp.dense(xp.astype(gradients[name], param.dtype)) for name, param in params.items()}


class Pairs:
    """The pairs of queries and keys of a call: arrays in tiles, and what each pair's score is."""

    def __init__(self, xp: Namespace, spec: Spec, arrays: Mapping[str, Any]) -> None:
        self.xp = xp
        self.spec = spec
        self.runs = runs(xp, arrays["segment_ids"]) if spec.segmented else None
        self.arrays = arrays
        q = arrays["q"]
        self.queries = Tiles(xp, q, spec.queries, arrays.get("cu_seqlens_q"))
        self.keys = Tiles(xp, q, spec.keys, arrays.get("cu_seqlens_k"))
        shift = self.keys.lengths - self.queries.lengths
        of_queries = (1, 1, 1, self.queries.count, TILE, 1)
        self.place = xp.reshape(self.queries.step + shift[self.queries.owner][:, None], of_queries)
        self.taken = xp.reshape(self.queries.taken, of_queries)
        if self.runs is not None:
            self.run = self._of_steps(self.runs.number)
            self.taken = self.run > 0
        self.bias = self._bias()
        self.slopes = self._slopes()

    @property
    def by_key(self) -> bool:
        """Whether a bias has an axis of keys that is not shared."""
        return self.spec.bias is not None and self.spec.bias.shape[3] != 1

    @property
    def tiles(self) -> dict[str, Any]:
        """What belongs to each tile of keys, by name, along the first axis."""
        keys = self.keys
        tiles = {"k": self._of_keys("k"), "v": self._of_keys("v"), "step": keys.step, "taken": keys.taken}
        tiles |= {"owner": keys.owner}
        if self.runs is not None:
            # (key tiles, batch, 1, 1, 1, 1, TILE)
            tiles |= {"run": self._runs_of_keys()[:, :, None, None, None, None]}
        if self.by_key:
            # (key tiles, batch, G, R, query tiles, TILE, TILE)
            cut = keys.cut(self.bias, 5)
            tiles["bias"] = self.xp.moveaxis(cut, 1, 6)
        return tiles

    def scores(self, q: Any, tile: Mapping[str, Any]) -> tuple[Any, Any]:
        """The scores of all queries with a tile of keys, -inf where not visible; and the slope of the cap, or None."""
        xp, spec = self.xp, self.spec
        x, slope = xp.matmul(q, _turned(xp, tile["k"])) * spec.factor, None
        if spec.softcap is not None:
            bounded = xp.tanh(x / spec.softcap)
            x, slope = bounded * spec.softcap, 1 - bounded * bounded
        if spec.bias is not None:
            x = x + (tile["bias"] if self.by_key else self.bias)
        if spec.alibi_slopes is not None:
            x = x - self.slopes * self.distance(tile)
        return xp.where(self._visible(tile), x, -inf), slope

    def own(self, array: Any, tile: Mapping[str, Any]) -> Any:
        """An array with zeros for the tiles of queries of other sequences, whose numbers need not be finite."""
        if not self.spec.packed:
            return array
        return self.xp.where(self._same_owner(tile), array, 0)

    def inside(self, array: Any) -> Any:
        """An array of queries with zeros at steps whose id is of no sequence, where numbers need not be finite."""
        return array if self.runs is None else self.xp.where(self.taken, array, 0)

    def distance(self, tile: Mapping[str, Any]) -> Any:
        """How far each key is from each query's position."""
        return self.xp.astype(self.xp.abs(self._offset(tile)), self.spec.compute_dtype)

    def dropped(self, tile: Mapping[str, Any]) -> Any:
        """The factors of dropout."""
        spec = self.spec
        if spec.threshold == 0:
            return 1.0
        seed, key = self.arrays["dropout_seed"], tile["step"]
        if self.runs is None:
            keep = kept(self.xp, spec, seed, self.queries, key)
        else:
            keep = kept_in_runs(self.xp, spec, seed, self.queries.step, key, self._of_steps(self.runs.start))
        return self.xp.astype(keep, spec.compute_dtype) * (1 / (1 - spec.threshold / FORMS))

    def of_queries(self, name: str) -> Any:
        """An array (batch, queries, heads, size) in tiles."""
        array = self.xp.astype(self.arrays[name], self.spec.compute_dtype)
        return self.inside(self._tiled(self._by_group(array, 2), 1))

    def of_rows(self, name: str) -> Any:
        """An array (batch, heads, queries) in tiles, with a last axis of size 1."""
        array = self.xp.astype(self.arrays[name], self.spec.compute_dtype)
        return self.inside(self._tiled(self._by_group(array, 1), 3)[..., None])

    def of_heads(self, array: Any) -> Any:
        """An array (heads,) as (1, G, R, 1, 1, 1)."""
        groups = self.spec.groups
        return self.xp.reshape(array, (1, groups, self.spec.heads // max(groups, 1), 1, 1, 1))

    def joined(self, array: Any, dtype: str) -> Any:
        """The inverse of `of_queries`."""
        xp, spec = self.xp, self.spec
        array = self._untiled(xp.astype(array, dtype), 1)
        return xp.dense(xp.reshape(array, (*array.shape[:2], spec.heads, array.shape[4])))

    def joined_rows(self, array: Any) -> Any:
        """The inverse of `of_rows`."""
        xp, spec = self.xp, self.spec
        return xp.dense(xp.reshape(self._untiled(array[..., 0], 3), (spec.batch, spec.heads, spec.queries)))

    def joined_keys(self, array: Any) -> Any:
        """(key tiles, batch, G, TILE, size) as (batch, keys, G, size)."""
        return self.keys.join(self.xp.moveaxis(array, 3, 1), 1)

    def as_bias(self, dscores: Any) -> Any:
        """The gradients of a tile of scores, summed along the axes that a bias shares, one after the other."""
        assert self.spec.bias is not None
        xp, (batch, heads, queries, keys) = self.xp, self.spec.bias.shape
        axes = [*((0,) if batch == 1 else ()), *(HEADS if heads == 1 else ()), *(QUERIES if queries == 1 else ())]
        for axis in (*axes, *((5,) if keys == 1 else ())):
            shape = (*dscores.shape[:axis], 1, *dscores.shape[axis + 1 :])
            dscores = xp.reshape(xp.sum(dscores, axis), shape)
        return dscores

    def of_shared_bias(self, q: Any) -> Any:
        """Zeros as the gradient of a bias whose axis of keys is shared, in tiles; of any other bias a number."""
        if self.spec.bias is None or self.by_key:
            return self.xp.zeros(q, (), self.spec.compute_dtype)
        return self.xp.zeros(q, self.bias.shape, self.spec.compute_dtype)

    def joined_bias(self, array: Any) -> Any:
        """The inverse of `_bias`, from all tiles of keys where the axis of keys is not shared."""
        assert self.spec.bias is not None
        xp, shape = self.xp, self.spec.bias.shape
        if self.by_key:
            array = self.keys.join(xp.moveaxis(array, 6, 1), 5)
        if shape[2] != 1:
            array = self._untiled(array, 3)
        return xp.reshape(array, shape)

    def joined_slopes(self, array: Any) -> Any:
        """The gradient of the slopes, (H,) or (sequences, H), from (batch, G, R, tiles, TILE, 1)."""
        xp, spec = self.xp, self.spec
        assert spec.alibi_slopes is not None
        array = xp.sum(array[..., 0], 4)
        if len(spec.alibi_slopes.shape) == 1:
            return xp.reshape(xp.sum(xp.sum(array, 3), 0), (spec.heads,))
        if not spec.packed:
            return xp.reshape(xp.sum(array, 3), (spec.batch, spec.heads))
        number = xp.arange(array, spec.sequences)
        own = xp.reshape(self.queries.owner[None] == number[:, None], (spec.sequences, 1, 1, self.queries.count))
        return xp.reshape(xp.sum(xp.where(own, array, 0), 3), (spec.sequences, spec.heads))

    def summed_heads(self, array: Any) -> Any:
        """(batch, G, R, tiles, TILE, 1) summed by head, (H,)."""
        xp = self.xp
        return xp.reshape(xp.sum(xp.sum(xp.sum(array[..., 0], 4), 3), 0), (self.spec.heads,))

    def _of_steps(self, array: Any) -> Any:
        """An array (batch, queries) in tiles, (batch, 1, 1, tiles, TILE, 1)."""
        return self._tiled(array[:, None, None], 3)[..., None]

    def _tiled(self, array: Any, axis: int) -> Any:
        """An array, cut along its axis of queries: (batch, G, R, tiles, TILE, ...)."""
        cut = self.queries.cut(array, axis)
        return self.xp.moveaxis(self.xp.moveaxis(cut, 0, 4), 0, 4)

    def _untiled(self, array: Any, axis: int) -> Any:
        """The inverse of `_tiled`."""
        return self.queries.join(self.xp.moveaxis(self.xp.moveaxis(array, 4, 0), 4, 0), axis)

    def _of_keys(self, name: str) -> Any:
        """k or v as (key tiles, batch, G, 1, 1, TILE, size)."""
        array = self.xp.astype(self.arrays[name], self.spec.compute_dtype)
        cut = self.xp.moveaxis(self.keys.cut(array, 1), 1, 3)[:, :, :, None, None]
        if self.runs is None:
            return cut
        return self.xp.where(self._runs_of_keys()[:, :, None, None, None, :, None] > 0, cut, 0)

    def _runs_of_keys(self) -> Any:
        """The run of each key, (key tiles, batch, TILE)."""
        assert self.runs is not None
        return self.xp.moveaxis(self.keys.cut(self.runs.number, 1), 1, 2)

    def _by_group(self, array: Any, axis: int) -> Any:
        """An array whose axis of heads, or of size 1, becomes two: groups, and heads of a group."""
        size, groups = array.shape[axis], self.spec.groups
        two = (1, 1) if size == 1 and self.spec.heads != 1 else (groups, size // max(groups, 1))
        return self.xp.reshape(array, (*array.shape[:axis], *two, *array.shape[axis + 1 :]))

    def _bias(self) -> Any:
        """The bias as (batch, G, R, query tiles, TILE, keys); axes of size 1 stay so. None where there is none."""
        if self.spec.bias is None:
            return None
        bias = self._by_group(self.xp.astype(self.arrays["bias"], self.spec.compute_dtype), 1)
        return bias[:, :, :, None] if bias.shape[3] == 1 else self._tiled(bias, 3)

    def _slopes(self) -> Any:
        """The slopes of every query; None where there are none."""
        xp, spec = self.xp, self.spec
        if spec.alibi_slopes is None:
            return None
        slopes = xp.astype(self.arrays["alibi_slopes"], spec.compute_dtype)
        if len(slopes.shape) == 1:
            return self.of_heads(slopes)
        if not spec.packed:
            return self._by_group(slopes, 1)[:, :, :, None, None, None]
        of_tiles = self._by_group(slopes[self.queries.owner], 1)  # tiles, G, R
        return xp.moveaxis(of_tiles, 0, 2)[None, :, :, :, None, None]

    def _offset(self, tile: Mapping[str, Any]) -> Any:
        """How far each key lies after each query's position, (1, 1, 1, query tiles, TILE, TILE)."""
        return aligned(tile["step"], self.place) - self.place

    def _same_owner(self, tile: Mapping[str, Any]) -> Any:
        """Whether the queries of a tile are of the same packed sequence as the keys, (1, 1, 1, query tiles, 1, 1)."""
        return self.xp.reshape(self.queries.owner == tile["owner"], (1, 1, 1, self.queries.count, 1, 1))

    def _visible(self, tile: Mapping[str, Any]) -> Any:
        offset = self._offset(tile)
        visible = self.taken & aligned(tile["taken"], self.taken)
        if self.runs is None:
            visible = visible & self._same_owner(tile)
        else:
            visible = visible & (self.run == tile["run"])
        left, right = self.spec.sides
        if left is not None:
            visible = visible & (offset >= -left)
        if right is not None:
            visible = visible & (offset <= right)
        return visible


def _start(call: Pairs, q: Any, rows: tuple[int, ...]) -> tuple[Any, Any]:
    """The largest score and the sum of exponentials before the first key: those of the sinks."""
    xp, spec = call.xp, call.spec
    zeros = xp.zeros(q, rows, spec.compute_dtype)
    if spec.sinks is None:
        return zeros - inf, zeros
    sinks = call.of_heads(xp.astype(call.arrays["sinks"], spec.compute_dtype))
    return zeros + sinks, zeros + xp.astype(sinks > -inf, spec.compute_dtype)


def _scan(call: Pairs, step: Any, carry: Any) -> tuple[Any, Any]:
    """`step` over the tiles of keys, each a dict by name."""
    tiles = call.tiles
    return call.xp.scan(
        lambda carry, tile: step(carry, dict(zip(tiles, tile, strict=True))), carry, tuple(tiles.values()), False
    )


def _turned(xp: Namespace, array: Any) -> Any:
    """Matrices transposed."""
    return xp.moveaxis(array, -1, -2)


def _in_order(xp: Namespace, array: Any) -> Any:
    """(batch, G, R, query tiles, ...) summed over R and the tiles, one after the other: zeros change nothing."""
    array = xp.moveaxis(xp.moveaxis(array, 2, 0), 3, 1)
    terms = xp.reshape(array, (array.shape[0] * array.shape[1], *array.shape[2:]))
    zeros = xp.zeros(array, terms.shape[1:], str(array.dtype).removeprefix("torch."))
    total, _ = xp.scan(lambda total, term: (total + term[0], ()), zeros, (terms,), False)
    return total
