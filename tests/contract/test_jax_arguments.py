"""The arguments that the JAX functions accept, and the errors for those that they refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from retrograd.jax import (
    causal_conv1d,
    causal_conv1d_update,
    gated_delta_rule_update,
    linear_scan,
    rms_norm,
    selective_scan,
    selective_state_update,
    ssd,
    ssd_update,
)

OPS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        rms_norm,
        linear_scan,
        causal_conv1d,
        selective_scan,
        causal_conv1d_update,
        selective_state_update,
        ssd,
        ssd_update,
        gated_delta_rule_update,
    )
}
B, T, D, N, W, H, P = 2, 5, 4, 3, 3, 4, 2
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "rms_norm": {"x": (B, T, D)},
    "linear_scan": {"a": (B, T, D), "b": (B, T, D)},
    "causal_conv1d": {"x": (B, T, D), "weight": (D, W)},
    "selective_scan": {"x": (B, T, D), "dt": (B, T, D), "A": (D, N), "B": (B, T, N), "C": (B, T, N)},
    "ssd": {"x": (B, T, H, P), "dt": (B, T, H), "A": (H,), "B": (B, T, 1, N), "C": (B, T, 1, N)},
    "causal_conv1d_update": {"x": (B, D), "state": (B, D, W - 1), "weight": (D, W)},
    "selective_state_update": {
        "state": (B, D, N), "x": (B, D), "dt": (B, D), "A": (D, N), "B": (B, N), "C": (B, N),
    },
    "ssd_update": {
        "state": (B, H, P, N), "x": (B, H, P), "dt": (B, H), "A": (H,), "B": (B, 1, N), "C": (B, 1, N),
    },
    "gated_delta_rule_update": {
        "state": (B, H, P, N), "q": (B, 1, N), "k": (B, 1, N), "v": (B, H, P), "g": (B, H), "beta": (B, H),
    },
}  # fmt: skip
IN_TIME = ("linear_scan", "causal_conv1d", "selective_scan", "ssd")


def drawn(op: str, seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape) for name, shape in SHAPES[op].items()}


def packed(op: str, seed: int) -> dict[str, jax.Array]:
    """Arguments with a single row, which `cu_seqlens` can divide."""
    arrays = {name: jnp.asarray(array) for name, array in drawn(op, seed).items()}
    return {name: array[:1] if array.ndim >= 3 else array for name, array in arrays.items()}


@pytest.mark.parametrize("op", OPS)
def test_arrays_of_numpy_are_taken_as_jax_takes_them(op: str, seed: int) -> None:
    arguments = drawn(op, seed)
    found = OPS[op](**arguments)
    expected = OPS[op](**{name: jnp.asarray(array) for name, array in arguments.items()})
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array)
        assert a.dtype == "float32"
        assert np.array_equal(a, b)


@pytest.mark.parametrize("op", OPS)
def test_what_is_no_array_of_numbers_is_refused_by_name(op: str, seed: int) -> None:
    for name in SHAPES[op]:
        for wrong in (None, [1.0], np.array(["a"]), "a"):
            with pytest.raises(TypeError, match=rf"^{op}: {name} is \S+, expected"):
                OPS[op](**{**drawn(op, seed), name: wrong})


@pytest.mark.parametrize("kind", [jnp.int32, np.int64])
@pytest.mark.parametrize("numbers", [[3, 1, T], [0, 100], [-1, T]])
@pytest.mark.parametrize("op", IN_TIME)
def test_numbers_that_fall_or_pass_t_are_refused_on_a_cpu(op: str, numbers: list[int], kind: Any, seed: int) -> None:
    cu_seqlens = jnp.array(numbers, kind) if kind is jnp.int32 else np.array(numbers, kind)
    with pytest.raises(ValueError, match=rf"^{op}: cu_seqlens\[\d\] is -?\d+, expected numbers that do not fall"):
        OPS[op](**packed(op, seed), cu_seqlens=cu_seqlens)


@pytest.mark.parametrize("numbers", [[3, 1, T], [0, 100], [-1, T]])
@pytest.mark.parametrize("op", IN_TIME)
def test_under_jit_such_numbers_give_numbers(op: str, numbers: list[int], seed: int) -> None:
    arrays = packed(op, seed)
    run = jax.jit(lambda cu_seqlens: OPS[op](**arrays, cu_seqlens=cu_seqlens))
    assert jnp.isfinite(run(jnp.array(numbers, jnp.int32))).all()


@pytest.mark.parametrize("wrong", ["garbage", 3, object()])
def test_what_is_no_dtype_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^rms_norm: out_dtype is .*, expected a dtype of jax.numpy"):
        rms_norm(jnp.ones((2, 4)), out_dtype=wrong)


@pytest.mark.parametrize("op", ["rms_norm", *IN_TIME])
def test_arrays_that_an_explicit_mesh_cuts_elsewhere_than_between_rows_are_refused_by_name(op: str, seed: int) -> None:
    mesh = jax.make_mesh((1,), ("model",), (AxisType.Explicit,), devices=jax.devices()[:1])
    arrays = {name: jnp.asarray(array) for name, array in drawn(op, seed).items()}
    first = next(iter(arrays))
    arrays[first] = jax.device_put(arrays[first], NamedSharding(mesh, PartitionSpec(None, None, "model")))
    with pytest.raises(ValueError, match=rf"^{op}: {first} is sharded as P.*'model'.*jax\.shard_map"):
        OPS[op](**arrays)


def test_without_jax_the_import_says_what_to_install() -> None:
    script = "import sys; sys.modules['jax'] = None; import retrograd.jax"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert 'ModuleNotFoundError: retrograd.jax needs jax: pip install "retrograd[jax]"' in result.stderr
