"""rms_norm's kernels beyond the tiny cases: many tiles, many programs, rows in parts, packed views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from checks import contract
from checks.interpreter import as_float16, forget_plans
from torch import Tensor

from retrograd import rms_norm
from retrograd.opinfo.cases import Case
from retrograd.ops.rms_norm.info import INFO
from retrograd.ops.rms_norm.triton import plan
from retrograd.testing.budget import draws_for
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import Arrays, call, options, plain_and_exact

MOST_DRAWS = 1  # the interpreter is slow, so every run has few cases of the tests with many calls
TELLING = ("odd_columns", "plain", "qk_norm_bias", "gate_after", "prenorm_fp32_stream")


def interpreted(every_run: Callable[[str, Case], bool]) -> pytest.MarkDecorator:
    """The cases with both kinds of tiles; those outside `every_run` are marked `slow`."""
    return pytest.mark.parametrize(
        ("_small_tiles", "case"),
        [
            pytest.param(
                tiles,
                as_float16(case),
                id=f"{tiles}-{case.name}",
                marks=() if every_run(tiles, case) else pytest.mark.slow,
            )
            for tiles in ("whole", "in-parts")
            for case in INFO.tagged("interpreter")
        ],
        indirect=["_small_tiles"],
    )


STRIDED = [
    pytest.param(as_float16(INFO.case(name)), layout, id=f"{name}-{layout}", marks=() if now else pytest.mark.slow)
    for name, now in (
        ("plain", True),
        ("gate_after", True),
        ("odd_columns", False),
        ("qk_norm", False),
        ("prenorm", False),
    )
    for layout, now in (("sliced", now), ("transposed", False))
]


@pytest.fixture
def _small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows per tile and three programs; `in-parts`: rows of more than 8 columns, 32 columns at a time."""
    shrink = {"forward": ("rows",), "backward": ("rows", "programs")}
    if request.param == "in-parts":
        monkeypatch.setattr(plan, "WHOLE_FORWARD", (8, 8))
        monkeypatch.setattr(plan, "WHOLE_BACKWARD", (8, 8))
        shrink = {
            "forward": ("columns",),
            "backward_columns": ("rows", "columns", "programs"),
            "backward_row_means": ("columns",),
        }
    monkeypatch.setattr(plan, "FEW_TILES", 0)
    small = {"rows": 2, "columns": 32, "programs": 3}
    for name, fields in shrink.items():
        monkeypatch.setattr(plan, name, smaller(getattr(plan, name), {field: small[field] for field in fields}))
    forget_plans()


def smaller(original: Callable[..., plan.Tile], fields: dict[str, int]) -> Callable[..., plan.Tile]:
    """The plan with other tiles."""
    return lambda *args: replace(original(*args), **fields)


@interpreted(lambda tiles, case: case.name in TELLING or bool(case.options.get("group_size")))
@pytest.mark.usefixtures("_small_tiles")
def test_many_tiles_and_programs_keep_the_error_budget(case: Case, seed: int) -> None:
    contract.check_errors(INFO, case, "cpu", seed, most_draws=MOST_DRAWS)


@interpreted(lambda tiles, case: case.name in TELLING[1:])
@pytest.mark.usefixtures("_small_tiles")
def test_many_tiles_and_programs_give_a_row_the_same_bits_in_every_batch(case: Case, seed: int) -> None:
    contract.check_batch_invariance(INFO, case, "cpu", seed)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("_small_tiles", ["whole", "in-parts"], indirect=True)
@pytest.mark.parametrize(("case", "layout"), STRIDED)
def test_many_tiles_and_programs_reach_strided_arrays(case: Case, layout: str, seed: int) -> None:
    contract.check_layout(INFO, case, layout, "cpu", seed)


def packed_heads(tensor: Tensor) -> Tensor:
    """(B, T, H, N) as the middle third of a packed (B, T, 3, H, N), like q, k and v of one projection."""
    packed = torch.full((*tensor.shape[:2], 3, *tensor.shape[2:]), torch.nan, dtype=tensor.dtype)
    packed[:, :, 1] = tensor
    return packed[:, :, 1]


def heads_first(tensor: Tensor) -> Tensor:
    """(B, T, H, N) stored as (B, H, T, N), the layout that attention returns."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def one_element(tensor: Tensor) -> Tensor:
    """One element expanded with strides of 0."""
    return tensor[:1, :1, :1, :1].expand(tensor.shape)


@pytest.mark.parametrize("gradient", [packed_heads, heads_first, one_element])
@pytest.mark.parametrize("layout", [packed_heads, heads_first])
@pytest.mark.parametrize("name", [pytest.param("qk_norm", marks=pytest.mark.slow), "qk_norm_bias"])
def test_heads_are_normalised_where_they_lie(
    name: str, layout: Callable[[Tensor], Tensor], gradient: Callable[[Tensor], Tensor], seed: int
) -> None:
    case = as_float16(INFO.case(name))
    draws: list[tuple[Arrays, Arrays, Arrays]] = []
    for i in range(draws_for(case)):
        inputs, (dy,) = contract.drawn(INFO, case, "cpu", seed * 1000 + i)
        inputs, dy = inputs | {"x": layout(inputs["x"])}, gradient(dy)
        assert not inputs["x"].is_contiguous()
        plain, exact = plain_and_exact(INFO.reference, case, inputs, [dy])
        draws.append((call(INFO.torch, inputs, options(case), [dy]), plain, exact))
    assert_within_budget(draws, f"{name}: x {layout.__name__}, dy {gradient.__name__}")


def test_what_is_normalised_is_the_sum_as_it_is_returned(seed: int) -> None:
    check_rounded_sum(seed)


def check_rounded_sum(seed: int) -> None:
    """Normalising the returned sum has the same bits, so the backward pass reads what the forward pass normalised."""
    generator = torch.Generator().manual_seed(seed)
    x, residual = (torch.randn(4, 64, generator=generator).half() for _ in range(2))
    y, s = rms_norm(x, residual=residual, prenorm=True)
    assert torch.equal(y, rms_norm(s)), "what was normalised is not the sum that was returned"
