"""Run-time numbers are not compiled into kernels; scratch arrays may be integers, and may be zeroed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scaled.op import OP, Spec

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build, signature
from retrograd.core.jax import arguments as jax_arguments
from retrograd.core.jax import launch as xla_launch
from retrograd.core.jax import op as jax_op
from retrograd.core.spec import Param
from retrograd.core.torch import arguments as torch_arguments
from retrograd.core.torch import op as torch_op
from retrograd.core.torch import passes as torch_pass

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
in_torch, in_jax = torch_op.bind(OP), jax_op.bind(OP)


def scaled(x: Any, scale: Any = None, seed: Any = None) -> Any:
    """The public function as it would be generated from the declaration."""
    arguments, call = (torch_arguments, in_torch) if isinstance(x, torch.Tensor) else (jax_arguments, in_jax)
    scale = arguments.as_array("scaled", "scale", scale, "float32", x)
    seed = arguments.as_array("scaled", "seed", seed, "int32", x)
    return call({"x": x, "scale": scale, "seed": seed}, {})[0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_new_number_compiles_nothing_in_pytorch(device: str) -> None:
    x = torch.randn(5, 33, device=device, requires_grad=True)
    scaled(x, 2.0, 7)
    before = torch_pass._prepare.cache_info().misses
    for scale, seed in ((3.0, 8), (0.5, -1)):
        x.grad = None
        y = scaled(x, scale, seed)
        y.sum().backward()
        torch.testing.assert_close(y, x * scale + seed + 1)
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full_like(x, scale))
    assert torch_pass._prepare.cache_info().misses == before


@pytest.mark.parametrize("device", DEVICES)
def test_a_new_number_compiles_nothing_in_jax(device: str) -> None:
    x = jax.device_put(
        jnp.linspace(-1.0, 1.0, 165).reshape(5, 33), jax.devices("gpu" if device == "cuda" else "cpu")[0]
    )
    gradient = jax.grad(lambda x, scale, seed: scaled(x, scale, seed).sum())
    scaled(x, 2.0, 7)
    gradient(x, 2.0, 7)
    before = xla_launch._jitted.cache_info().misses
    for scale, seed in ((jnp.float32(3.0), 8), (jnp.float32(0.5), -1)):
        np.testing.assert_allclose(scaled(x, scale, seed), x * scale + seed + 1, rtol=1e-6)
        np.testing.assert_array_equal(gradient(x, scale, seed), jnp.full_like(x, scale))
    assert xla_launch._jitted.cache_info().misses == before
    traced = jax.jit(lambda x, seed: scaled(x, None, seed))
    for seed in (1, 2):
        np.testing.assert_allclose(traced(x, seed), x + seed + 1, rtol=1e-6)
    assert traced._cache_size() == 1  # type: ignore[attr-defined]


def test_calls_with_numbers_of_their_own_are_batched_in_jax() -> None:
    x, seeds = jnp.ones((3, 2, 4)), jnp.arange(3, dtype=jnp.int32)
    found = jax.vmap(lambda x, seed: scaled(x, None, seed))(x, seeds)
    np.testing.assert_array_equal(found, x + seeds[:, None, None].astype(x.dtype) + 1)


def test_a_number_has_no_gradient_and_says_so() -> None:
    with pytest.raises(ValueError, match=r"^scaled: scale is .*, expected one that does not: it has none$"):
        scaled(torch.ones(2, 3), torch.tensor(2.0, requires_grad=True))
    with pytest.raises(TypeError, match=r"^scaled: scale has no derivative"):
        jax.grad(lambda scale: scaled(jnp.ones((2, 3)), scale).sum())(jnp.float32(2.0))


@pytest.mark.parametrize("ones", [torch.ones, jnp.ones], ids=["torch", "jax"])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"seed": 1.5}, "seed is float, expected an int or an array without axes"),
        ({"seed": True}, "seed is bool, expected an int or an array without axes"),
        ({"seed": 2**31}, "seed is 2147483648, expected a finite number that int32 has"),
        ({"scale": "x"}, "scale is str, expected a float or an array without axes"),
        ({"scale": float("nan")}, "scale is nan, expected a finite number that float32 has"),
    ],
)
def test_what_is_no_number_is_refused(ones: Any, given: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^scaled: {text}$"):
        scaled(ones((2, 3)), **given)


def test_a_number_is_read_from_memory_by_the_kernel() -> None:
    spec: Spec = OP.spec(
        {"x": Param((4, 32), "float32"), "scale": Param((), "float32"), "seed": Param((), "int32")}, {}
    )
    program = OP.forward(spec).program({}, SUPPORTED["sm_90"])
    assert program is not None
    for launch in program.launches:
        assert "int32" not in repr(launch.constants)
        build(launch, program.arrays, SUPPORTED["sm_90"])
    types = dict(signature(program.launches[1], program.arrays).types)
    assert (types["scale_ptr"], types["seed_ptr"], types["counts_ptr"]) == ("*fp32", "*i32", "*i32")
