"""Scans of arrays that exceed 32-bit offsets: many rows, and long rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks.large import drawn
from torch import Tensor

from retrograd import linear_scan, selective_scan, ssd
from retrograd.ops.linear_scan import reference as linear_reference
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import Arrays, call, leaves, normal

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

COUNT = 2**31 + 2**24  # elements of an array
D = 2048
STEPS = 512  # of a row, in tests with many rows
ROWS = COUNT // (STEPS * D)
MAMBA = {"dt_softplus": True}
SUMS = ("A", "D", "dt_bias")  # gradients that are sums over rows


def scan_inputs(rows: int, steps: int, generator: torch.Generator) -> Arrays:
    """Inputs, and decays in (0, 1) whose products vanish within some dozens of steps."""
    decays = drawn((rows, steps, D), generator)
    for part in decays.view(-1).split(2**28):
        part.copy_(torch.sigmoid(part.float()))
    return {"a": decays, "b": drawn((rows, steps, D), generator)}


def mamba_inputs(rows: int, steps: int, generator: torch.Generator) -> Arrays:
    """The arguments in a Mamba layer: 16 states."""
    inputs = {name: drawn((rows, steps, D), generator) for name in ("x", "dt", "z")}
    inputs |= {name: drawn((rows, steps, 16), generator) for name in ("B", "C")}
    inputs |= {name: normal((D,), generator) for name in ("D", "dt_bias")}
    return inputs | {"A": -normal((D, 16), generator).abs()}


def ssd_inputs(rows: int, steps: int, generator: torch.Generator, heads: int = D // 64) -> Arrays:
    """The arguments in a Mamba-2 layer: heads of 64 channels, 128 states."""
    inputs = {"x": drawn((rows, steps, heads, 64), generator), "dt": drawn((rows, steps, heads), generator)}
    inputs |= {name: drawn((rows, steps, 1, 128), generator) for name in ("B", "C")}
    inputs |= {name: normal((heads,), generator) for name in ("D", "dt_bias")}
    return inputs | {"A": -normal((heads,), generator).abs()}


def drawn_as(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A gradient with the shape of a tensor."""
    return drawn(tuple(tensor.shape), generator)


def row(inputs: Arrays, number: int) -> Arrays:
    """The inputs with one row of each array that has rows."""
    return {name: tensor[number : number + 1] if tensor.dim() >= 3 else tensor for name, tensor in inputs.items()}


@pytest.mark.parametrize(
    ("function", "draw", "options"),
    [(linear_scan, scan_inputs, {}), (selective_scan, mamba_inputs, MAMBA), (ssd, ssd_inputs, MAMBA)],
    ids=["linear_scan", "selective_scan", "ssd"],
)
def test_rows_beyond_32_bits_have_the_bits_that_they_have_alone(
    function: Callable[..., Tensor], draw: Callable[..., Arrays], options: dict[str, Any], seed: int
) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    inputs = draw(ROWS, STEPS, generator)
    dy = drawn_as(next(iter(inputs.values())), generator)
    result = call(function, inputs, options, [dy])
    for number in (0, ROWS // 2, ROWS - 2, ROWS - 1):
        alone = call(function, row(inputs, number), options, [dy[number : number + 1]])
        for name, tensor in alone.items():
            if name.removeprefix("d ") not in SUMS:
                assert torch.equal(result[name][number : number + 1], tensor), f"row {number}: {name}"


def test_sums_over_rows_beyond_32_bits_are_those_of_the_rows(seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    inputs = mamba_inputs(ROWS, STEPS, generator)
    dy = drawn((ROWS, STEPS, D), generator)
    result = call(selective_scan, inputs, MAMBA, [dy])
    exact = {name: torch.zeros_like(result[f"d {name}"], dtype=torch.float64) for name in SUMS}
    for number in range(ROWS):
        alone = call(selective_scan, row(inputs, number), MAMBA, [dy[number : number + 1]])
        for name in SUMS:
            exact[name] += alone[f"d {name}"]
    for name in SUMS:
        # 2,000 rows in tiles of 1,024 and a tree of 10 levels: at most 12 roundings of 2^-24, of sums whose terms
        # have absolute values that add up to sqrt(2,000) times the result.
        error = (result[f"d {name}"] - exact[name]).norm() / exact[name].norm()
        assert error < 12 * 2.0**-24 * 45, f"d {name}: {error}"


@pytest.mark.parametrize(
    ("function", "draw"), [(selective_scan, mamba_inputs), (ssd, ssd_inputs)], ids=["selective_scan", "ssd"]
)
def test_a_row_longer_than_32_bits_has_the_results_of_its_parts(
    function: Any, draw: Callable[..., Arrays], seed: int
) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    steps = COUNT // D
    inputs = draw(1, steps, generator)
    check_parts(function, inputs, drawn_as(inputs["x"], generator), steps // 2 // 1024 * 1024)


def test_the_last_of_a_million_steps_of_ssd_have_the_bits_that_they_have_from_a_state_near_them(seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    steps = 2**20
    inputs = ssd_inputs(1, steps, generator, heads=4)
    check_parts(ssd, inputs, drawn_as(inputs["x"], generator), steps - 3 * 128)


def check_parts(function: Any, inputs: Arrays, dy: Tensor, cut: int) -> None:
    """Assert that a row has the same bits in two calls, cut at the start of a chunk, that pass the state on."""
    steps = dy.shape[1]
    result = call(function, inputs, MAMBA, [dy])

    def part(start: int, stop: int) -> Arrays:
        return leaves({n: t[:, start:stop].contiguous() if t.dim() >= 3 else t for n, t in inputs.items()})

    first, second = part(0, cut), part(cut, steps)
    y, state = function(**first, **MAMBA, return_final_state=True)
    handed = state.detach().requires_grad_()
    late = function(**second, **MAMBA, initial_state=handed)
    late.backward(dy[:, cut:])
    torch.autograd.backward([y, state], [dy[:, :cut], handed.grad])
    assert torch.equal(result["y"][:, :cut], y)
    assert torch.equal(result["y"][:, cut:], late)
    for name in first:
        if name not in SUMS:
            for (start, stop), leaf in (((0, cut), first[name]), ((cut, steps), second[name])):
                assert leaf.grad is not None
                assert torch.equal(result[f"d {name}"][:, start:stop], leaf.grad), f"d {name} of {start} to {stop}"


def test_a_linear_scan_longer_than_32_bits_keeps_its_error_budget_at_its_end(seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    steps = COUNT // D
    inputs = scan_inputs(1, steps, generator)
    dy = drawn((1, steps, D), generator)
    result = call(linear_scan, inputs, {}, [dy])
    # Decays of sigmoid(2) have a product below 2^-24 after 132 steps; few decays stay larger for long.
    judged, before = 256, 2048
    piece = {name: tensor[:, -(judged + before) :] for name, tensor in inputs.items()}
    plain = call(linear_reference.linear_scan, piece, {}, [dy[:, -(judged + before) :]])
    exact = call(
        linear_reference.linear_scan,
        {name: tensor.double() for name, tensor in piece.items()},
        {},
        [dy[:, -(judged + before) :].double()],
    )
    found, plain, exact = ({n: t[:, -judged:] for n, t in arrays.items()} for arrays in (result, plain, exact))
    assert_within_budget([(found, plain, exact)], "the last steps")
