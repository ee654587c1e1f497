"""Sequences divided over the devices of a mesh, on four of a CPU; run by test_jax_devices.py."""

from __future__ import annotations

import os
import sys

from xla_flags import quick

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=4 {quick()}"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from collections.abc import Container, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import retrograd.jax
from retrograd.jax import nn
from retrograd.jax.distributed import ContextParallel, scans

CONTEXT = ContextParallel("cp")
STEPS = P(None, "cp")
H, G, D, N, W = 8, 4, 8, 4, 4


class Call(NamedTuple):
    """A call of an op: arrays with time as their second axis, arrays without, and options."""

    op: str
    steps: dict[str, jax.Array]
    rest: dict[str, jax.Array]
    options: dict[str, Any]


class Draws:
    """Numbers, each from a key of its own."""

    def __init__(self) -> None:
        self.keys = iter(jax.random.split(jax.random.key(0), 100))

    def __call__(self, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.normal(next(self.keys), shape).astype(dtype)


def calls(rows: int, time: int, sequences: int, rate: float) -> Iterator[Call]:
    """Of every op; states of scans decay `rate` times as fast."""
    draw = Draws()

    def steps(*shape: int) -> jax.Array:
        return draw(rows, time, *shape)

    final = {"return_final_state": True}
    scan = {"a": jax.nn.sigmoid(steps(D)) ** rate, "b": steps(D)}
    start = {"initial_state": draw(sequences, D)}
    yield Call("linear_scan", scan, start, final)
    if rate == 1:  # compiling takes longest
        yield Call("linear_scan", scan, start, final | {"reverse": True})
    yield Call(
        "selective_scan",
        {"x": steps(D), "dt": steps(D), "B": steps(N), "C": steps(N), "z": steps(D)},
        {"A": -rate * jnp.exp(draw(D, N)), "D": draw(D)},
        {"dt_softplus": True},
    )
    yield Call(
        "ssd",
        {"x": steps(H, D), "dt": steps(H), "B": steps(G, N), "C": steps(G, N)},
        {"A": -rate * jnp.exp(draw(H)), "dt_bias": draw(H), "initial_state": draw(sequences, H, D, N)},
        {"dt_softplus": True} | final,
    )
    x, weights = {"x": draw(rows, time, D, dtype=jnp.bfloat16)}, {"weight": draw(D, W), "bias": draw(D)}
    yield Call("causal_conv1d", x, weights, {})
    state = {"initial_state": draw(sequences, D, W - 1, dtype=jnp.bfloat16)}
    yield Call("causal_conv1d", x, weights | state, {"activation": "silu"} | final)
    heads = {"q": steps(H, D), "k": steps(G, D), "v": steps(G, D)}
    yield Call("attention", heads, {}, {"causal": True, "return_lse": True})
    of_heads = {"sinks": draw(H), "alibi_slopes": jnp.exp(draw(H))}
    yield Call("attention", heads | {"k": steps(1, D), "v": steps(1, D)}, of_heads, {"causal": True, "window": (9, 0)})


def mesh_of(world: int) -> jax.sharding.Mesh:
    return jax.make_mesh((world,), ("cp",), (AxisType.Auto,), devices=jax.devices()[:world])


def found(call: Call, world: int, bounds: tuple[int, ...] | None) -> dict[str, np.ndarray]:
    """Results and gradients: on one device without a context, world 0, or on several."""
    arrays = call.steps | call.rest
    names = ("cu_seqlens_q", "cu_seqlens_k") if call.op == "attention" else ("cu_seqlens",)
    packed = {} if bounds is None else dict.fromkeys(names, jnp.array(bounds, jnp.int32))

    def results(arrays: dict[str, jax.Array], **context: Any) -> tuple[jax.Array, ...]:
        returned = getattr(retrograd.jax, call.op)(**arrays, **packed, **call.options, **context)
        return returned if isinstance(returned, tuple) else (returned,)

    function = results
    if world:
        second = P(None, None, "cp") if call.op == "attention" else P()
        function = jax.shard_map(
            partial(results, context=CONTEXT),
            mesh=mesh_of(world),
            in_specs=({name: STEPS if name in call.steps else P() for name in arrays},),
            out_specs=(STEPS, second)[: len(jax.eval_shape(results, arrays))],
        )

    def both(arrays: dict[str, jax.Array]) -> tuple[Any, Any]:
        returned, back = jax.vjp(function, arrays)
        draw = Draws()
        return returned, back(tuple(draw(*r.shape, dtype=r.dtype) for r in returned))[0]

    returned, gradients = jax.jit(both)(arrays)
    named = {f"result {place}": x for place, x in enumerate(returned)} | {f"d{n}": x for n, x in gradients.items()}
    return {name: np.asarray(x.astype(jnp.float32)) for name, x in named.items()}


def differences(
    world: int,
    time: int,
    bounds: tuple[int, ...] | None,
    ops: Container[str] | None = None,
    rate: float = 1,
    bits: bool = False,
) -> list[str]:
    """What is further from one device than rounding: of all ops, or some. Or, of steps, has other bits."""
    rows, sequences = (2, 2) if bounds is None else (1, len(bounds) - 1)
    different = []
    for call in calls(rows, time, sequences, rate):
        if ops is not None and call.op not in ops:
            continue
        whole, parts = found(call, 0, bounds), found(call, world, bounds)
        for name, expected in whole.items():
            tolerance = 2e-2 if call.op == "causal_conv1d" else 2e-5
            own = name == "result 0" or name[1:] in call.steps
            if bits and own and call.op != "linear_scan" and call.steps.get("k", np.zeros((1, 1, 9))).shape[2] >= world:
                tolerance = 0
            off = np.abs(expected - parts[name]).max()
            if not off <= tolerance * np.abs(expected).max():
                different.append(f"{call.op} {name}: {off}")
    return different


def results_and_gradients() -> None:
    """They are those of one device, on one and on two, and packed with sequences over several of four devices."""
    assert differences(1, 24, None, ("linear_scan",)) == []
    assert differences(2, 48, None, ("causal_conv1d",)) == []
    assert differences(4, 48, (3, 7, 7, 30, 41)) == []


def at_once() -> None:
    """States that decay soon are computed by all devices at once, and one after another if that was wrong."""
    packed = (5, 40, 70, 127)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "STEP", 8)
        patch.setattr(scans.Steps, "_in_turn", lambda self, of, leaving, empty, back: empty)
        assert differences(4, 128, packed, ("linear_scan", "ssd"), rate=512) == []
        assert differences(4, 128, None, ("linear_scan",), rate=1 / 64) != []  # in turn, which is switched off
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "STEP", 8)
        patch.setattr(scans, "FORGOTTEN", -1.0)
        assert differences(2, 128, None, ("ssd",), rate=1 / 64) == []


def second_derivatives() -> None:
    """They are right for scans, and refused for the convolution."""
    draw = Draws()
    steps = {"x": draw(1, 16, H, D), "dt": draw(1, 16, H), "B": draw(1, 16, G, N), "C": draw(1, 16, G, N)}
    A = -jnp.exp(draw(H))

    def second(function: Any, given: Any) -> Any:
        def of_first(given: Any) -> jax.Array:
            first = jax.grad(lambda given: (function(given) ** 3).sum())(given)
            return sum((leaf**2).sum() for leaf in jax.tree.leaves(first))

        return jax.jit(jax.grad(of_first))(given)

    def scan(given: Any, **context: Any) -> jax.Array:
        return retrograd.jax.ssd(**given, A=A, dt_softplus=True, **context)

    def filtered(x: jax.Array) -> jax.Array:
        return retrograd.jax.causal_conv1d(x, jnp.ones((D, W)), context=CONTEXT)

    divided = partial(jax.shard_map, mesh=mesh_of(2), in_specs=STEPS, out_specs=STEPS)
    expected, got = second(scan, steps), second(divided(partial(scan, context=CONTEXT)), steps)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5 * np.abs(array).max(), err_msg=name)
    with pytest.raises(NotImplementedError, match="causal_conv1d: a second derivative beside a context"):
        second(divided(filtered), draw(1, 16, D))


def models() -> None:
    """Language models of all layers have the logits and gradients that they have on one device, packed too."""
    sizes: dict[str, Any] = {"d_model": 16, "n_layer": 2, "vocab_size": 11, "attn_layer_idx": (1,)}
    attention = nn.AttentionConfig(num_heads=4, d_conv=3, rotary_emb_dim=4)
    tokens = jax.random.randint(jax.random.key(1), (1, 48), 0, 11)
    bounds = jnp.array([0, 17, 45])
    for ssm in (nn.Mamba1Config(d_state=4), nn.Mamba2Config(d_state=4, headdim=8)):
        config = nn.MambaConfig(**sizes, attn_cfg=attention, ssm_cfg=ssm)
        params = nn.init(jax.random.key(0), config)

        def logits(params: Any, tokens: jax.Array, config: Any = config, **context: Any) -> jax.Array:
            return nn.language_model(params, config, tokens, cu_seqlens=bounds, **context)

        def both(function: Any, params: Any = params) -> Any:
            found, back = jax.vjp(lambda params: function(params, tokens), params)
            return found, back(jnp.sin(jnp.arange(found.size)).reshape(found.shape))[0]

        divided = partial(logits, context=CONTEXT)
        divided = jax.shard_map(divided, mesh=mesh_of(2), in_specs=(P(), STEPS), out_specs=STEPS)
        expected, found = jax.jit(partial(both, logits))(), jax.jit(partial(both, divided))()
        for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-4 * np.abs(one).max())
    with pytest.raises(ValueError, match="language_model: state is 'given', expected None beside a context"):
        nn.language_model(params, config, tokens, nn.initial_state(config, 1, capacity=48), context=CONTEXT)  # type: ignore[call-overload]


def a_state_in_16_bits() -> None:
    """It is taken beside arrays of 16 bits, as on one device, and its gradient has its dtype."""
    draw = Draws()
    arrays = {"a": jax.nn.sigmoid(draw(2, 8, D)), "b": draw(2, 8, D), "initial_state": draw(2, D)}
    arrays = {name: x.astype(jnp.bfloat16) for name, x in arrays.items()}
    specs = {"a": STEPS, "b": STEPS, "initial_state": P()}
    divided = jax.shard_map(
        lambda arrays: retrograd.jax.linear_scan(**arrays, context=CONTEXT),
        mesh=mesh_of(4), in_specs=(specs,), out_specs=STEPS,
    )  # fmt: skip

    def total(arrays: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        result = divided(arrays).astype(jnp.float32)
        return result.sum(), result

    gradients, result = jax.jit(jax.grad(total, has_aux=True))(arrays)
    assert gradients["initial_state"].dtype == jnp.bfloat16
    expected = jax.jit(retrograd.jax.linear_scan)(arrays["a"], arrays["b"], initial_state=arrays["initial_state"])
    np.testing.assert_allclose(result, expected.astype(jnp.float32), atol=2e-2)


def positions() -> None:
    """Those of the steps in their sequences, without sequences in gaps."""

    def own(x: jax.Array) -> jax.Array:
        return CONTEXT.positions(x.shape[0], np.array([1, 5, 5, 7]))

    found = jax.shard_map(own, mesh=mesh_of(4), in_specs=P("cp"), out_specs=P("cp"))(jnp.zeros(8))
    assert found.tolist() == [0, 0, 1, 2, 3, 0, 1, 0]


def refusals() -> None:
    """An error that names what does not fit."""
    x, weight = jnp.ones((1, 8, D)), jnp.ones((D, W))
    q, bias = jnp.ones((1, 8, 4, D)), jnp.ones((1, 1, 8, 8))

    def raises(kind: type[Exception], text: str, call: Any, *arrays: jax.Array, **more: Any) -> None:
        specs = tuple(STEPS if array.shape[1] == 8 and array.ndim > 2 else P() for array in arrays)
        with pytest.raises(kind, match=text):
            jax.shard_map(call, mesh=mesh_of(4), in_specs=specs, out_specs=STEPS, **more)(*arrays)

    def scan(x: jax.Array, **more: Any) -> jax.Array:
        found: jax.Array = retrograd.jax.linear_scan(x, x, context=CONTEXT, **more)
        return found

    def attention(q: jax.Array, k: jax.Array, **more: Any) -> jax.Array:
        return retrograd.jax.attention(q, k, k, causal=True, context=CONTEXT, **more)

    with pytest.raises(TypeError, match=r"context.axis_name is tuple, expected the name of one axis of a mesh"):
        retrograd.jax.linear_scan(x, x, context=ContextParallel(("cp",)))  # type: ignore[arg-type]
    bounds = np.array([0, 9], np.int32)
    outside = r"linear_scan: cu_seqlens\[1\] is 9, expected numbers that do not fall, from 0 to 8"
    raises(ValueError, outside, lambda x: scan(x, cu_seqlens=bounds), x)
    slopes = "attention: alibi_slopes has shape"
    raises(ValueError, slopes, lambda q: attention(q, q, alibi_slopes=jnp.ones(11)), q)
    with pytest.raises(ValueError, match=r"linear_scan: context.axis_name is 'cp', expected an axis of a mesh, within"):
        scan(x)
    with pytest.raises(TypeError, match=r"linear_scan: context is str, expected a retrograd\.jax"):
        retrograd.jax.linear_scan(x, x, context="cp")  # type: ignore[call-overload]
    raises(ValueError, r"context is 'within jax.shard_map\(check_vma=False\)'", scan, x, check_vma=False)
    few = r"causal_conv1d: x has shape \(1, 2, 8\), expected at least 3 steps on each device"
    raises(ValueError, few, lambda x: retrograd.jax.causal_conv1d(x, weight, context=CONTEXT), x)
    heads = "attention: k's number of heads is 3, expected a multiple of 4, the number of devices, or a number that"
    raises(ValueError, heads, attention, q.repeat(3, 2), q[:, :, :3])
    odd = q[:, :, :3]
    raises(ValueError, "attention: q's number of heads is 3, expected a multiple of 4", attention, odd, odd)
    raises(ValueError, "attention: bias is 'given', expected None", lambda q: attention(q, q, bias=bias), q)
    raises(ValueError, r"attention: k has shape .* as q: keys are those of the queries", attention, q, q[:, :4])


if __name__ == "__main__":
    if sys.argv[1:] == ["slow"]:
        second_derivatives()
        at_once()
        models()
    else:
        positions()
        refusals()
        a_state_in_16_bits()
        results_and_gradients()
