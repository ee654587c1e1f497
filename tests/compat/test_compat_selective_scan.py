"""The stand-ins for mamba_ssm's scan and update agree with their definitions, in its layouts, for every argument.

Values and gradients are compared in float64, so that they differ by a few roundings only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import compat_plain as plain
import pytest
import torch
from compat_calls import (
    BATCH,
    DIM,
    GROUPS,
    STATES,
    STEPS,
    Draw,
    assert_same_function,
    close,
    drawing,
    scan_inputs,
    zeros,
)
from torch import Tensor

from retrograd.compat.mamba_ssm.ops.selective_scan_interface import selective_scan_fn
from retrograd.compat.mamba_ssm.ops.triton.selective_state_update import selective_state_update


@pytest.fixture
def draw(seed: int) -> Draw:
    return drawing(seed)


FORMS = ("constant", "steps", "groups")


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("C", FORMS)
@pytest.mark.parametrize("B", FORMS)
def test_selective_scan_takes_every_form_of_B_and_C(draw: Draw, B: str, C: str, is_complex: bool) -> None:
    ours = partial(selective_scan_fn, return_last_state=True)
    assert_same_function(ours, plain.scan, scan_inputs(draw, B, C, is_complex))


@pytest.mark.parametrize("left_out", ["D", "z", "delta_bias", "delta_softplus"])
def test_selective_scan_without_an_option(draw: Draw, left_out: str) -> None:
    inputs = scan_inputs(draw)
    del inputs[left_out]
    if left_out == "delta_softplus":  # a step size below 0 would let the states grow
        inputs["delta"], inputs["delta_bias"] = inputs["delta"].abs(), inputs["delta_bias"].abs()
    assert_same_function(selective_scan_fn, lambda **arguments: plain.scan(**arguments)[0], inputs)


def test_selective_scan_takes_parameters_of_any_dtype_beside_bfloat16(draw: Draw) -> None:
    low: dict[str, Any] = {
        name: t.detach().bfloat16() if isinstance(t, Tensor) else t for name, t in scan_inputs(draw, B="groups").items()
    }
    out, state = selective_scan_fn(**low, return_last_state=True)
    exact, exact_state = plain.scan(**{n: t.double() if isinstance(t, Tensor) else t for n, t in low.items()})  # type: ignore[arg-type]
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out.double(), exact, rtol=2.0**-8, atol=1e-4)  # out is rounded once, to 8 bits
    torch.testing.assert_close(state.double(), exact_state, rtol=1e-4, atol=1e-5)  # float32 throughout


HEADS = (2 * GROUPS, 3)  # groups of 3 channels


def update_inputs(draw: Draw, shape: tuple[int, ...], groups: tuple[int, ...]) -> dict[str, Any]:
    inputs = {
        "x": draw(BATCH, *shape),
        "dt": draw(BATCH, *shape),
        "A": -draw(*shape, STATES).exp(),
        "B": draw(BATCH, *groups, STATES),
        "C": draw(BATCH, *groups, STATES),
        "D": draw(*shape),
        "z": draw(BATCH, *shape),
        "dt_bias": draw(*shape),
    }
    return {name: t.detach() for name, t in inputs.items()}


def updated(state: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The recurrence of one step, head by head."""
    delta = plain.softplus(arguments["dt"] + arguments["dt_bias"])[..., None]

    def spread(matrix: Tensor) -> Tensor:
        if state.ndim == 3:
            return matrix.reshape(BATCH, 1, STATES)
        groups = matrix if matrix.ndim == 3 else matrix[:, None]
        return groups.repeat_interleave(state.shape[1] // groups.shape[1], 1)[:, :, None]

    new = torch.exp(delta * arguments["A"]) * state + delta * arguments["x"][..., None] * spread(arguments["B"])
    y = (new * spread(arguments["C"])).sum(-1) + arguments["D"] * arguments["x"]
    return y * torch.nn.functional.silu(arguments["z"]), new


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((DIM,), ()), ((DIM,), (1,)), (HEADS, ()), (HEADS, (1,)), (HEADS, (GROUPS,))],
    ids=["channels", "channels, a group", "heads", "heads, a group", "heads, groups"],
)
def test_a_state_update_writes_the_state_in_place(draw: Draw, shape: tuple[int, ...], groups: tuple[int, ...]) -> None:
    arguments = update_inputs(draw, shape, groups)
    state = draw(BATCH, *shape, STATES).detach()
    expected = updated(state.clone(), arguments)
    y = selective_state_update(state, **arguments, dt_softplus=True)
    close((y, state), expected)


@pytest.mark.parametrize("indices", [[4, 0], [-1, 3], [0, -1], [-1, -1]])
def test_state_batch_indices_choose_rows_and_negative_ones_change_none(draw: Draw, indices: list[int]) -> None:
    arguments = update_inputs(draw, (DIM,), ())
    pool = draw(5, DIM, STATES).detach()
    expected, result = pool.clone(), torch.zeros(BATCH, DIM, dtype=torch.float64)
    y, new = updated(pool[torch.tensor(indices)], arguments)
    for row, index in enumerate(indices):
        if index >= 0:
            expected[index], result[row] = new[row], y[row]
    found = selective_state_update(
        pool, **arguments, dt_softplus=True, state_batch_indices=torch.tensor(indices, dtype=torch.int32)
    )
    close((found, pool), (result, expected))


def test_a_bfloat16_state_is_written_in_bfloat16(draw: Draw) -> None:
    arguments = {name: t.bfloat16() for name, t in update_inputs(draw, (DIM,), ()).items()}
    state = draw(BATCH, DIM, STATES).detach().bfloat16()
    expected = updated(state.double(), {name: t.double() for name, t in arguments.items()})
    y = selective_state_update(state, **arguments, dt_softplus=True)
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.bfloat16)
    # Both are rounded once, to 8 bits; the rest is the float32 error before.
    torch.testing.assert_close((y.double(), state.double()), expected, rtol=2.0**-8, atol=1e-4)


SIGNATURES = {
    selective_scan_fn: "u delta A B C D z delta_bias delta_softplus return_last_state",
    selective_state_update: "state x dt A B C D z dt_bias dt_softplus state_batch_indices",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__name__)
def test_arguments_have_the_names_and_the_order_of_mamba_ssm(function: Callable[..., Any]) -> None:
    assert " ".join(inspect.signature(function).parameters) == SIGNATURES[function]


SCAN_REFUSALS: dict[str, Any] = {
    "u": zeros(BATCH, DIM),
    "delta": zeros(BATCH, STEPS, DIM),
    "A": zeros(DIM + 1, STATES),
    "B": zeros(BATCH, STEPS, STATES),
    "C": zeros(BATCH, 4, STATES, STEPS),  # 4 groups do not divide 6 channels
    "D": zeros(1),
    "z": [1.0],
    "delta_bias": zeros(STEPS),
}
UPDATE_REFUSALS: dict[str, Any] = {
    "state": zeros(BATCH + 1, DIM, STATES),
    "x": zeros(BATCH, DIM, 1),
    "dt": zeros(BATCH, 1),
    "A": zeros(DIM, STATES, dtype=torch.complex128),
    "B": zeros(BATCH, 2, STATES),
    "C": zeros(1, STATES),
    "D": zeros(1),
    "z": zeros(BATCH, 1),
    "dt_bias": zeros(1),
    "state_batch_indices": zeros(BATCH),
}


@pytest.mark.parametrize("name", SCAN_REFUSALS)
def test_selective_scan_fn_names_what_it_refuses(draw: Draw, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"^selective_scan_fn: {name} "):
        selective_scan_fn(**(scan_inputs(draw) | {name: SCAN_REFUSALS[name]}))


@pytest.mark.parametrize("name", ["u", "delta", "D", "z", "delta_bias", "B"])
def test_no_imaginary_part_is_dropped(draw: Draw, name: str) -> None:
    arguments = scan_inputs(draw)
    with pytest.raises(TypeError, match=f"^selective_scan_fn: {name} has dtype complex128, expected float32 or "):
        selective_scan_fn(**(arguments | {name: arguments[name] + 0j}))


@pytest.mark.parametrize("name", UPDATE_REFUSALS)
def test_selective_state_update_names_what_it_refuses(draw: Draw, name: str) -> None:
    arguments = update_inputs(draw, (DIM,), ()) | {"state": zeros(BATCH, DIM, STATES)}
    with pytest.raises((ValueError, TypeError), match=rf"^selective_state_update: {name} "):
        selective_state_update(**(arguments | {name: UPDATE_REFUSALS[name]}))


def test_autocast_changes_no_dtype(draw: Draw) -> None:
    scanned: dict[str, Any] = {
        n: t.detach().float() if isinstance(t, Tensor) else t for n, t in scan_inputs(draw, "steps").items()
    }
    step = [torch.ones(BATCH, DIM, STATES), *torch.ones(2, BATCH, DIM), -torch.ones(DIM, STATES)]
    matrices = torch.full((2, BATCH, STATES), 1 / 3)

    def results() -> list[Tensor]:
        y = selective_state_update(*(t.clone() for t in step), *matrices)
        return [y, *selective_scan_fn(**scanned, return_last_state=True)]

    with torch.autocast("cpu", torch.bfloat16):
        found = results()
    assert all(map(torch.equal, found, results()))
