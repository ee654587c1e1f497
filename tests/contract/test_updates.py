"""The functions for one generation step accept and refuse the same arguments as those for a sequence, and agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor

import retrograd
import retrograd.jax
from retrograd.ops.selective_scan import reference
from retrograd.ops.selective_scan.cases import case
from retrograd.ops.ssd import reference as ssd_reference
from retrograd.ops.ssd.cases import case as ssd_case
from retrograd.testing.budget import draws_for
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import draw, options, outputs, upcast

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "causal_conv1d_update": {"x": (2, 6), "state": (2, 6, 3), "weight": (6, 4), "bias": (6,)},
    "selective_state_update": {
        "state": (2, 6, 4),
        "x": (2, 6),
        "dt": (2, 6),
        "A": (6, 4),
        "B": (2, 4),
        "C": (2, 3, 4),
        "D": (6,),
        "z": (2, 6),
        "dt_bias": (6,),
    },
    "ssd_update": {
        "state": (2, 6, 3, 4),
        "x": (2, 6, 3),
        "dt": (2, 6),
        "A": (6,),
        "B": (2, 2, 4),
        "C": (2, 2, 4),
        "D": (6, 3),
        "z": (2, 6, 3),
        "dt_bias": (6,),
    },
    "gated_delta_rule_update": {
        "state": (2, 6, 3, 4),
        "q": (2, 2, 4),
        "k": (2, 2, 4),
        "v": (2, 6, 3),
        "g": (2, 6, 4),
        "beta": (2, 6),
    },
}
OPTIONS = {
    "causal_conv1d_update": "activation",
    "selective_state_update": "dt_softplus",
    "ssd_update": "dt_softplus",
    "gated_delta_rule_update": "normalize_qk",
}
OPTIONAL = {"bias", "D", "z", "dt_bias"}
MODULES: dict[str, Any] = {"torch": retrograd, "jax": retrograd.jax}

WRONG: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda good: None,
    "a list": lambda good: good.tolist(),
    "a number": lambda good: 1.0,
    "integers": lambda good: good.int(),
    "booleans": lambda good: good.bool(),
    "complex": lambda good: good.to(torch.complex128),
    "a longer array": lambda good: torch.cat([good, good[:1]]),
    "more dimensions": lambda good: good[None, None],
    "no dimensions": lambda good: good.flatten()[0],
}
WRONG_TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "an array of numpy": lambda good: good.numpy(),
    "a tensor elsewhere": lambda good: good.to("meta"),
    "a sparse tensor": lambda good: good.to_sparse(),
    "a nested tensor": lambda good: torch.nested.as_nested_tensor([good, good[:1]]),
}


def good(function: str) -> dict[str, Any]:
    return {name: torch.ones(shape) for name, shape in SHAPES[function].items()}


def in_jax(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    with jax.enable_x64(value.dtype == torch.complex128):
        return jnp.asarray(value.numpy())


def calls(wrong: dict[str, Callable[[Tensor], Any]], *frameworks: str) -> list[Any]:
    return [
        pytest.param(framework, function, name, spoil, id=f"{framework}-{function}-{name}-{what}")
        for framework in frameworks
        for function, shapes in SHAPES.items()
        for name in shapes
        for what, spoil in wrong.items()
        if not (what == "nothing" and name in OPTIONAL)
        # The first declared decides the batch size, so with a longer one the next argument is refused.
        and not (what == "a longer array" and name in ("x", "q"))
    ]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("framework", "function", "name", "spoil"), calls(WRONG, "torch", "jax") + calls(WRONG_TENSORS, "torch")
)
def test_a_wrong_argument_is_refused_by_its_name(
    framework: str, function: str, name: str, spoil: Callable[[Tensor], Any]
) -> None:
    arguments = good(function) | {name: spoil(good(function)[name])}
    if framework == "jax":
        arguments = {argument: in_jax(value) for argument, value in arguments.items()}
    # The first tensor sets the expected device, so another name is reported if the first is on another device.
    first = next(iter(arguments))
    named = rf"(device of )?({name})" if name != first else rf"{name}|device of \w+"
    with pytest.raises((TypeError, ValueError), match=rf"^{function}: ({named})[ .]"):
        getattr(MODULES[framework], function)(**arguments)


@pytest.mark.parametrize("value", [1, "relu", np.True_, torch.tensor(True), [True]], ids=repr)
@pytest.mark.parametrize("function", OPTIONS)
@pytest.mark.parametrize("framework", MODULES)
def test_a_wrong_option_is_refused_by_its_name(framework: str, function: str, value: Any) -> None:
    arrays = good(function)
    if framework == "jax":
        arrays = {argument: in_jax(array) for argument, array in arrays.items()}
    with pytest.raises((TypeError, ValueError), match=f"^{function}: {OPTIONS[function]} is "):
        getattr(MODULES[framework], function)(**arrays, **{OPTIONS[function]: value})


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"state": torch.ones(2, 6, 5)}, "state has shape (2, 6, 5), expected (batch=2, channels=6, state=4)"),
        ({"state": torch.ones(2, 6, 4).bfloat16()}, "state has dtype bfloat16, expected float32"),
        ({"B": torch.ones(2, 5, 4)}, "B.shape[1] is 5, expected groups that divide the channels, 6"),
        ({"B": torch.ones(6, 4)}, "B has shape (6, 4), expected (batch=2, state=4) or (batch=2, groups, state=4)"),
        ({"x": torch.ones(2, 1, 6)}, "x has shape (2, 1, 6), expected (batch, channels)"),
        ({"A": torch.ones(6, 4).bfloat16()}, "A has dtype bfloat16, expected float32 or complex64"),
        ({"A": torch.ones(6, 0)}, "A has shape (6, 0), expected (channels=6, state=1..256)"),
    ],
)
def test_what_is_expected_of_a_step_has_no_time(wrong: dict[str, Tensor], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^selective_state_update: {re.escape(text)}$"):
        retrograd.selective_state_update(**(good("selective_state_update") | wrong))


def test_the_state_of_a_convolution_is_named_as_the_user_named_it() -> None:
    arguments = good("causal_conv1d_update") | {"state": torch.ones(2, 6, 4)}
    text = "causal_conv1d_update: state has shape (2, 6, 4), expected (batch=2, channels=6, width-1=3)"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        retrograd.causal_conv1d_update(**arguments)


@pytest.mark.parametrize("function", SHAPES)
def test_a_step_takes_the_meta_device(function: str) -> None:
    arguments = good(function)
    found = getattr(retrograd, function)(**{name: tensor.to("meta") for name, tensor in arguments.items()})
    expected = getattr(retrograd, function)(**arguments)
    assert [(t.device.type, t.shape, t.dtype) for t in found] == [("meta", t.shape, t.dtype) for t in expected]


MAMBA = {"z", "D", "dt_bias", "dt_softplus"}
GENERATED = [
    case("float32", (3, 6, 32, 16), dtype="float32", initial_state=True, return_final_state=True),
    case("bfloat16, all", (2, 6, 32, 16), given=MAMBA, groups=(2, None), initial_state=True, return_final_state=True),
    case("float16", (1, 6, 32, 32), dtype="float16", given={"z"}, initial_state=True, return_final_state=True),
    case("fp32 B, C", (2, 6, 32, 16), matrix_dtype="float32", initial_state=True, return_final_state=True),
    case("complex", (2, 6, 32, 16), dtype="float32", is_complex=True, initial_state=True, return_final_state=True),
]
STATES: dict[str, Any] = {"initial_state": True, "return_final_state": True}
GENERATED_BY_SSD = [
    ssd_case("ssd, bfloat16, all", (2, 6, 16, 8, 2, 16), given=MAMBA, wide_D=True, dt_limit=(0.04, 0.08), **STATES),
    ssd_case("ssd, fp32 B, C", (1, 6, 16, 8, 16, 32), dtype="float16", matrix_dtype="float32", given={"z"}, **STATES),
]
EACH_GENERATED = [
    *(
        pytest.param("selective_state_update", reference.selective_scan, reference.plain, c, id=c.name)
        for c in GENERATED
    ),
    *(pytest.param("ssd_update", ssd_reference.ssd, ssd_reference.plain, c, id=c.name) for c in GENERATED_BY_SSD),
]


def generated(
    update: Callable[..., Any], stack: Callable[..., Any], x: Any, *, initial_state: Any, **arguments: Any
) -> tuple[Any, Any]:
    """The results of a sequence, computed one step at a time."""
    del arguments["return_final_state"]
    over_time = {name for name in ("dt", "B", "C", "z") if name in arguments}
    state, ys = initial_state, []
    for t in range(x.shape[1]):
        step = {name: value[:, t] if name in over_time else value for name, value in arguments.items()}
        y, state = update(state, x[:, t], **step)
        ys.append(y)
    return stack(ys, 1), state


def generated_in_torch(x: Tensor, step: str = "selective_state_update", **arguments: Any) -> tuple[Tensor, Tensor]:
    return generated(getattr(retrograd, step), torch.stack, x, **arguments)


def generated_in_jax(x: Tensor, step: str = "selective_state_update", **arguments: Any) -> tuple[Tensor, ...]:
    def to_jax(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.dtype == torch.bfloat16:
            return jnp.asarray(value.float().numpy()).astype(jnp.bfloat16)
        return jnp.asarray(value.numpy())

    statics = [name for name in ("dt_softplus", "dt_limit") if name in arguments]
    update = jax.jit(getattr(retrograd.jax, step), static_argnames=statics)
    results = generated(update, jnp.stack, to_jax(x), **{name: to_jax(value) for name, value in arguments.items()})
    return tuple(
        torch.tensor(np.asarray(array.astype(jnp.float32))).bfloat16()
        if array.dtype == jnp.bfloat16
        else torch.tensor(np.asarray(array))
        for array in results
    )


@pytest.mark.parametrize("function", [generated_in_torch, generated_in_jax])
@pytest.mark.parametrize(("step", "definition", "plain", "tried"), EACH_GENERATED)
def test_steps_of_generation_keep_the_error_budget_of_the_sequence(
    step: str, definition: Any, plain: Any, tried: Any, function: Any, seed: int
) -> None:
    def named(function: Any, inputs: dict[str, Tensor], call_options: dict[str, Any]) -> dict[str, Tensor]:
        return dict(zip(("y", "state"), outputs(function, inputs, call_options), strict=True))

    draws = []
    for i in range(draws_for(tried)):
        inputs = draw(tried, "cpu", seed * 1000 + i)
        exact = {name: upcast(tensor) for name, tensor in inputs.items()}
        draws.append(
            (
                named(function, inputs, {**options(tried), "step": step}),
                named(plain, inputs, options(tried)),
                named(definition, exact, options(tried, torch.float64)),
            )
        )
    assert_within_budget(draws, tried.name)


def test_one_step_in_float64_is_the_scan_of_one_step_to_the_bit(seed: int) -> None:
    inputs = {name: upcast(tensor) for name, tensor in draw(GENERATED[1], "cpu", seed).items()}
    steps = {name: inputs[name][:, :1] for name in ("x", "dt", "B", "C", "z")}
    whole: dict[str, Any] = {**inputs, **steps, "dt_softplus": True, "return_final_state": True}
    torch.testing.assert_close(generated_in_torch(**whole), retrograd.selective_scan(**whole), rtol=0, atol=0)


@pytest.mark.parametrize("function", SHAPES)
def test_a_step_has_gradients(function: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    arguments = {name: torch.randn(shape, generator=generator) / 2 for name, shape in SHAPES[function].items()}

    def positional(*tensors: Tensor) -> Any:
        return getattr(retrograd, function)(**dict(zip(arguments, tensors, strict=True)))

    exact = [tensor.double().requires_grad_() for tensor in arguments.values()]
    assert torch.autograd.gradcheck(positional, exact, fast_mode=True)

    def loss(*arrays: Any) -> Any:
        results = getattr(retrograd.jax, function)(**dict(zip(arguments, arrays, strict=True)))
        return sum((array * array).sum() for array in results)

    wanted = torch.autograd.grad(sum((tensor * tensor).sum() for tensor in positional(*exact)), exact)
    arrays = [jnp.asarray(tensor.numpy()) for tensor in arguments.values()]
    for found, expected in zip(jax.jit(jax.grad(loss, range(len(arrays))))(*arrays), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(found), expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", SHAPES)
def test_arrays_of_numpy_are_taken_by_jax(function: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    arguments = {name: draw.standard_normal(shape) for name, shape in SHAPES[function].items()}
    update = getattr(retrograd.jax, function)
    wanted = update(**{name: jnp.asarray(array) for name, array in arguments.items()})
    for found, expected in zip(update(**arguments), wanted, strict=True):
        assert found.dtype == expected.dtype == jnp.float32
        assert (found == expected).all()


def test_a_step_leaves_the_state_that_came_in_as_it_is() -> None:
    arguments = good("selective_state_update")
    state = arguments["state"].clone()
    _, new = retrograd.selective_state_update(**arguments)
    assert torch.equal(arguments["state"], state)
    assert new.data_ptr() != arguments["state"].data_ptr()


@pytest.mark.parametrize("function", SHAPES)
def test_a_step_is_traced_into_one_graph_and_mapped_over_calls(function: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    arguments = {name: torch.randn(3, *shape, generator=generator) for name, shape in SHAPES[function].items()}
    call = getattr(retrograd, function)

    def positional(*tensors: Tensor) -> Any:
        return call(**dict(zip(arguments, tensors, strict=True)))

    wanted = [positional(*(tensor[i] for tensor in arguments.values())) for i in range(3)]
    stacked = tuple(torch.stack(results) for results in zip(*wanted, strict=True))
    torch.testing.assert_close(torch.vmap(positional)(*arguments.values()), stacked)
    for dynamic in (False, True):
        compiled = torch.compile(positional, fullgraph=True, backend="eager", dynamic=dynamic)
        torch.testing.assert_close(compiled(*(tensor[0] for tensor in arguments.values())), wanted[0])

    def positional_in_jax(*arrays: Any) -> Any:
        return getattr(retrograd.jax, function)(**dict(zip(arguments, arrays, strict=True)))

    mapped = jax.jit(jax.vmap(positional_in_jax))(*(jnp.asarray(tensor.numpy()) for tensor in arguments.values()))
    for found, expected in zip(mapped, stacked, strict=True):
        np.testing.assert_allclose(np.asarray(found), expected.numpy(), rtol=1e-4, atol=1e-5)
