"""The stand-ins for causal_conv1d's functions agree with their definitions, in its layouts, for every argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import compat_plain as plain
import pytest
import torch
from compat_calls import Draw, assert_same_function, close, drawing, zeros
from torch import Tensor

from retrograd.compat.causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from retrograd.compat.causal_conv1d.causal_conv1d_interface import causal_conv1d_ref, causal_conv1d_update_ref

BATCH, DIM, STEPS, WIDTH = 2, 5, 11, 4


@pytest.fixture
def draw(seed: int) -> Draw:
    return drawing(seed)


def inputs(draw: Draw, bias: bool = True) -> dict[str, Any]:
    return {"x": draw(BATCH, DIM, STEPS), "weight": draw(DIM, WIDTH), "bias": draw(DIM) if bias else None}


@pytest.mark.parametrize("activation", [None, "silu", "swish"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_with_and_without_bias_and_activation(draw: Draw, bias: bool, activation: str | None) -> None:
    meant = partial(plain.convolution, silu=activation is not None)
    assert_same_function(partial(causal_conv1d_fn, activation=activation), meant, inputs(draw, bias))


@pytest.mark.parametrize("steps", [1, STEPS])
def test_states_come_in_and_go_out(draw: Draw, steps: int) -> None:
    arguments = inputs(draw) | {"x": draw(BATCH, DIM, steps), "initial_states": draw(BATCH, DIM, WIDTH - 1)}

    def meant(x: Tensor, weight: Tensor, bias: Tensor, initial_states: Tensor) -> tuple[Tensor, Tensor]:
        last = torch.cat([initial_states, x], -1)[..., -(WIDTH - 1) :]
        return plain.convolution(x, weight, bias, initial_states, silu=True), last

    assert_same_function(partial(causal_conv1d_fn, activation="silu", return_final_states=True), meant, arguments)


def test_final_states_are_written_where_the_caller_says(draw: Draw) -> None:
    arguments = inputs(draw)
    place = zeros(BATCH, DIM, WIDTH - 1)
    _, final = causal_conv1d_fn(**arguments, return_final_states=True, final_states_out=place)
    assert final is place
    assert torch.equal(place, arguments["x"][..., -(WIDTH - 1) :])


def test_where_final_states_would_go_is_not_looked_at_without_them(draw: Draw) -> None:
    arguments, place = inputs(draw), zeros(BATCH, DIM, WIDTH - 1)
    assert torch.equal(causal_conv1d_fn(**arguments, final_states_out=place), causal_conv1d_fn(**arguments))  # type: ignore[arg-type]
    assert not place.any()


SEQUENCES = torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3], [5, 5, 5, 5, 5, 5, 5, 5, 7, -1, -1]], dtype=torch.int32)


def test_seq_idx_keeps_sequences_apart_and_makes_padding_zero(draw: Draw) -> None:
    def meant(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = []
        for row, sequence in zip(x, SEQUENCES, strict=True):
            parts = row.split(sequence.unique_consecutive(return_counts=True)[1].tolist(), -1)
            rows.append(torch.cat([plain.convolution(part[None], weight, bias)[0] for part in parts], -1))
        return torch.where(SEQUENCES[:, None] < 0, 0, torch.stack(rows))

    assert_same_function(partial(causal_conv1d_fn, seq_idx=SEQUENCES), meant, inputs(draw))


def test_parameters_may_have_another_dtype_than_x(draw: Draw) -> None:
    tensors = {name: t.detach().bfloat16() for name, t in inputs(draw).items()}
    exact = plain.convolution(**{name: t.double() for name, t in tensors.items()})
    for x in (torch.bfloat16, torch.float32):
        for parameters in (torch.bfloat16, torch.float32):
            y = causal_conv1d_fn(tensors["x"].to(x), tensors["weight"].to(parameters), tensors["bias"].to(parameters))
            assert isinstance(y, Tensor)
            assert y.dtype == x
            # One rounding to the dtype of x, after sums in float32.
            torch.testing.assert_close(y.double(), exact, rtol=torch.finfo(x).eps / 2, atol=1e-5)


def step_by_step(draw: Draw, length: int, count: int) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Arguments of an update of `count` steps, its result, and all inputs, the state's first."""
    tensors = inputs(draw) | {"x": draw(BATCH, DIM, count)}
    tensors = {name: t.detach() for name, t in tensors.items()}
    past = draw(BATCH, DIM, length).detach()
    everything = torch.cat([past, tensors["x"]], -1)
    before = past[..., length - (WIDTH - 1) :]
    return tensors, plain.convolution(tensors["x"], tensors["weight"], tensors["bias"], before, silu=True), everything


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("length", [WIDTH - 1, WIDTH + 2])
def test_an_update_shifts_the_state_in_place(draw: Draw, length: int, count: int) -> None:
    arguments, expected, everything = step_by_step(draw, length, count)
    state = everything[..., :length].clone()
    y = causal_conv1d_update(conv_state=state, activation="silu", **arguments)
    close((y, state), (expected, everything[..., -length:]))


def test_an_update_takes_a_single_step_without_a_dimension_of_time(draw: Draw) -> None:
    arguments, expected, everything = step_by_step(draw, WIDTH - 1, 1)
    state = everything[..., : WIDTH - 1].clone()
    y = causal_conv1d_update(arguments["x"][..., 0], state, arguments["weight"], arguments["bias"], "silu")
    close(y, expected[..., 0])


@pytest.mark.parametrize("count", [1, 3, 9])
def test_with_cache_seqlens_the_state_is_a_ring(draw: Draw, count: int) -> None:
    length, seen = 6, torch.tensor([6, 14], dtype=torch.int32)
    arguments, expected, everything = step_by_step(draw, length, count)
    ring, after = zeros(BATCH, DIM, length), zeros(BATCH, DIM, length)
    for row in range(BATCH):
        for step in range(length):
            ring[row, :, (int(seen[row]) - length + step) % length] = everything[row, :, step]
            newest = int(seen[row]) + count - length + step
            after[row, :, newest % length] = everything[row, :, count + step]
    y = causal_conv1d_update(conv_state=ring, activation="silu", cache_seqlens=seen, **arguments)
    close((y, ring), (expected, after))


@pytest.mark.parametrize("indices", [[3, 0], [-1, 2], [0, -1], [-1, -1]])
@pytest.mark.parametrize("ring", [False, True])
def test_conv_state_indices_choose_rows_and_negative_ones_change_none(
    draw: Draw, ring: bool, indices: list[int]
) -> None:
    arguments, _, _ = step_by_step(draw, WIDTH, 2)
    pool = draw(4, DIM, WIDTH).detach()
    before, expected = pool.clone(), zeros(BATCH, DIM, 2)
    options: dict[str, Any] = {"cache_seqlens": torch.tensor([5, 6], dtype=torch.int32)} if ring else {}
    alone = before.clone()
    for row, index in enumerate(indices):
        if index >= 0:  # each row in a separate call with its own state
            mine = {"x": arguments["x"][row : row + 1]} | {name: each[row : row + 1] for name, each in options.items()}
            expected[row] = causal_conv1d_update(conv_state=alone[index : index + 1], **(arguments | mine))[0]
    y = causal_conv1d_update(conv_state=pool, conv_state_indices=torch.tensor(indices).int(), **arguments, **options)
    assert torch.equal(y, expected)
    assert torch.equal(pool, alone)


def test_the_name_of_the_reference_has_no_sequences(draw: Draw) -> None:
    arguments = inputs(draw) | {"initial_states": draw(BATCH, DIM, WIDTH - 1)}
    assert torch.equal(causal_conv1d_ref(*arguments.values()), causal_conv1d_fn(**arguments))  # type: ignore[arg-type]


SIGNATURES = {
    causal_conv1d_ref: "x weight bias initial_states return_final_states final_states_out activation",
    causal_conv1d_update_ref: "x conv_state weight bias activation cache_seqlens conv_state_indices",
    causal_conv1d_fn: "x weight bias seq_idx initial_states return_final_states final_states_out activation",
    causal_conv1d_update: "x conv_state weight bias activation cache_seqlens conv_state_indices",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__name__)
def test_arguments_have_the_names_and_the_order_of_causal_conv1d(function: Callable[..., Any]) -> None:
    assert " ".join(inspect.signature(function).parameters) == SIGNATURES[function]


INDEX = torch.zeros(BATCH, STEPS, dtype=torch.int32)
REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("x", {"x": zeros(BATCH, DIM)}),
    ("weight", {"weight": zeros(DIM, 1, WIDTH)}),
    ("weight", {"weight": None}),
    ("weight", {"weight": zeros(DIM, WIDTH, dtype=torch.complex128)}),
    ("bias", {"bias": zeros(WIDTH)}),
    ("seq_idx", {"seq_idx": INDEX[:1]}),
    ("seq_idx", {"seq_idx": INDEX.double()}),
    ("initial_states", {"initial_states": zeros(BATCH, DIM, WIDTH)}),
    ("initial_states", {"initial_states": zeros(BATCH, DIM, WIDTH - 1), "seq_idx": INDEX}),
    ("return_final_states", {"return_final_states": True, "seq_idx": INDEX}),
    ("final_states_out", {"final_states_out": zeros(BATCH, DIM), "return_final_states": True}),
    ("activation", {"activation": "gelu"}),
]
UPDATE_REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("x", {"x": zeros(BATCH)}),
    ("conv_state", {"conv_state": zeros(BATCH, DIM, WIDTH - 2)}),
    ("conv_state", {"conv_state": zeros(BATCH + 1, DIM, WIDTH)}),
    ("weight", {"weight": zeros(DIM + 1, WIDTH)}),
    ("bias", {"bias": zeros(WIDTH)}),
    ("activation", {"activation": "gelu"}),
    ("cache_seqlens", {"cache_seqlens": zeros(BATCH)}),
    ("conv_state_indices", {"conv_state_indices": INDEX[0]}),
]


def named(rows: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    return [pytest.param(name, wrong, id=f"{name}-{place}") for place, (name, wrong) in enumerate(rows)]


@pytest.mark.parametrize(("name", "wrong"), named(REFUSALS))
def test_causal_conv1d_fn_names_what_it_refuses(draw: Draw, name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=f"^causal_conv1d_fn: {name} "):
        causal_conv1d_fn(**(inputs(draw) | wrong))


@pytest.mark.parametrize(("name", "wrong"), named(UPDATE_REFUSALS))
def test_causal_conv1d_update_names_what_it_refuses(draw: Draw, name: str, wrong: dict[str, Any]) -> None:
    arguments = inputs(draw) | {"conv_state": zeros(BATCH, DIM, WIDTH - 1)}
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=f"^causal_conv1d_update: {name} "):
        causal_conv1d_update(**(arguments | wrong))


def test_autocast_changes_no_dtype(draw: Draw) -> None:
    arguments = {name: t.detach().float() for name, t in inputs(draw).items()}
    state, x = torch.zeros(BATCH, DIM, WIDTH - 1), arguments["x"][..., 0]
    with torch.autocast("cpu", torch.bfloat16):
        found = [causal_conv1d_fn(**arguments), *causal_conv1d_fn(**arguments, return_final_states=True)]
        found.append(causal_conv1d_update(x, state, arguments["weight"]))
    expected = [causal_conv1d_fn(**arguments), *causal_conv1d_fn(**arguments, return_final_states=True)]
    expected.append(causal_conv1d_update(x, torch.zeros_like(state), arguments["weight"]))
    assert all(map(torch.equal, found, expected))
