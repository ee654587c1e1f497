"""Calls that XLA divides over the devices of a mesh under `jax.jit`, on those of a CPU; run by test_jax_devices.py.

There the portable path stands for the kernels, which XLA cannot look into.
"""

from __future__ import annotations

import os

from xla_flags import quick

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8 {quick()}"
os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from retrograd.core.jax import launch
from retrograd.jax import attention, causal_conv1d, rms_norm, ssd

AUTO = (AxisType.Auto, AxisType.Auto)
MESH = jax.make_mesh((2, 2), ("data", "model"), AUTO, devices=jax.devices()[:4])
WIDE = jax.make_mesh((2, 4), ("data", "model"), AUTO)
ROWS, HEADS, MODEL, SHARED = P("data"), P("data", None, "model"), P("model"), P()

computed: list[tuple[int, ...]] = []  # the shape of the first array of each pass that a device computes


def noting(*arrays: Any, call: Any) -> list[Any]:
    computed.append(arrays[0].shape)
    return list(call.portable(*arrays))


def divided(*arrays: Any, call: Any) -> list[Any]:
    found: list[Any] = call.divided(noting)(*arrays)
    return found


launch.need_devices()
mlir.register_lowering(launch.primitive, mlir.lower_fun(divided, multiple_results=True), platform="cpu")


def draw(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def check(
    function: Callable[..., Any],
    arrays: dict[str, jax.Array],
    specs: dict[str, P],
    part: tuple[int, ...],
    mesh: jax.sharding.Mesh = MESH,
    gathers: bool = False,
) -> None:
    """A call and its gradients are those of one device; each computes a part, and no array is gathered."""

    def both(arrays: dict[str, jax.Array]) -> Any:
        result, back = jax.vjp(function, arrays)
        return result, back(draw(*result.shape))[0]

    expected = jax.jit(both)(arrays)
    placed = {name: jax.device_put(x, NamedSharding(mesh, specs[name])) for name, x in arrays.items()}
    computed.clear()
    compiled = jax.jit(both).lower(placed).compile()
    assert set(computed[-2:]) == {part}, computed
    assert gathers == ("all-gather" in (compiled.as_text() or ""))
    for (path, wanted), found in zip(
        jax.tree.leaves_with_path(expected), jax.tree.leaves(compiled(placed)), strict=True
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max(), err_msg=str(path))


def rows() -> None:
    """Rows are divided, and the gradient of a weight, which all devices have, is summed."""
    arrays = {"x": draw(4, 6, 16), "weight": draw(16)}
    check(lambda a: rms_norm(**a), arrays, {"x": ROWS, "weight": SHARED}, (2, 6, 16))
    odd = {"x": draw(3, 6, 16), "weight": draw(16)}
    check(lambda a: rms_norm(**a), odd, {"x": SHARED, "weight": SHARED}, (3, 6, 16))


def channels() -> None:
    """Channels are divided as rows are."""
    arrays = {"x": draw(4, 10, 8), "weight": draw(8, 4)}
    check(lambda a: causal_conv1d(**a, activation="silu"), arrays, {"x": HEADS, "weight": MODEL}, (2, 10, 4))


def heads() -> None:
    """Heads are divided with their key heads; a key head that all queries share is not, and its gradient is summed."""
    names = ("q", "k", "v")
    arrays = dict(zip(names, (draw(4, 10, 8, 16), draw(4, 10, 4, 16), draw(4, 10, 4, 16)), strict=True))
    check(lambda a: attention(**a, causal=True), arrays, dict.fromkeys(names, HEADS), (2, 10, 4, 16))
    alone = arrays | {"k": draw(4, 10, 1, 16), "v": draw(4, 10, 1, 16)}
    check(lambda a: attention(**a, causal=True), alone, {"q": HEADS, "k": ROWS, "v": ROWS}, (2, 10, 4, 16))
    few = arrays | {"k": draw(4, 10, 2, 16), "v": draw(4, 10, 2, 16)}  # which four devices do not divide
    specs = {"q": HEADS, "k": ROWS, "v": ROWS}
    check(lambda a: attention(**a, causal=True), few, specs, (2, 10, 8, 16), WIDE, gathers=True)
    cu_seqlens = jnp.array([0, 3, 10])
    packed = {name: x[:1] for name, x in arrays.items()}

    def of_packed(a: dict[str, jax.Array]) -> jax.Array:
        return attention(a["q"], a["k"], a["v"], causal=True, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)

    check(of_packed, packed, dict.fromkeys(names, P(None, None, "model")), (1, 10, 4, 16))


def states() -> None:
    """So are those of a scan."""
    arrays = {"x": draw(4, 10, 8, 16), "dt": draw(4, 10, 8), "A": -jnp.exp(draw(8)), "B": draw(4, 10, 2, 8)}
    specs = {"x": HEADS, "dt": HEADS, "A": MODEL, "B": HEADS}
    check(lambda a: ssd(**a, C=a["B"], dt_softplus=True), arrays, specs, (2, 10, 4, 16))


if __name__ == "__main__":
    rows()
    channels()
    heads()
    states()
