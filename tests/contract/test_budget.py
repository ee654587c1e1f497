"""How many draws of a case decide whether its errors keep their budgets."""

from __future__ import annotations

from retrograd.testing.budget import CLEAR_DRAWS, Judgement, is_clear


def draws(number: int, error: float, budget: float = 1.0) -> list[tuple[Judgement, Judgement] | None]:
    return [(Judgement(error, budget), Judgement(error, budget))] * number


def test_few_draws_never_do() -> None:
    assert not is_clear(draws(CLEAR_DRAWS - 1, 0.1))


def test_errors_far_below_their_budgets_are_drawn_no_more() -> None:
    assert is_clear(draws(CLEAR_DRAWS, 0.4))


def test_errors_near_their_budgets_are_drawn_on() -> None:
    assert not is_clear(draws(CLEAR_DRAWS, 0.6))


def test_draws_without_a_budget_do_not_count() -> None:
    nothing: list[tuple[Judgement, Judgement] | None] = [None] * CLEAR_DRAWS
    assert not is_clear(nothing)
    assert not is_clear(nothing + draws(1, 0.1))
    assert is_clear(nothing + draws(CLEAR_DRAWS, 0.4))
