"""Generation of several rows at once: prompts of any lengths, steps in place, values read while others are computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from exact_models import CONFIGS, each_model, model, tokens
from torch import Tensor

from retrograd.nn import AttentionState, LanguageModel, generate, read_back, score

LENGTHS = (5, 130, 1, 37)


def prompts() -> list[Tensor]:
    return [tokens(1, length)[0] for length in LENGTHS]


@each_model
def test_a_row_draws_alone_what_it_draws_beside_prompts_of_other_lengths(name: str) -> None:
    ours, given = model(name), prompts()
    together = list(zip(*generate(ours, given, 9, seed=3, log_probabilities=True), strict=True))
    drawn, found = (torch.stack(each, 1) for each in together)
    for row, prompt in enumerate(given):
        alone = torch.stack(list(generate(ours, prompt[None], 9, seed=3 + row)), 1)
        assert torch.equal(drawn[row : row + 1], alone)
        expected = score(ours, torch.cat((prompt[None], alone), 1))[:, len(prompt) - 1 :]
        assert torch.equal(found[row : row + 1], expected)


@pytest.mark.parametrize("exact", [False, True], ids=["not exact", "exact"])
@each_model
@torch.no_grad()
def test_steps_in_place_give_what_other_steps_give(name: str, exact: bool) -> None:
    ours, text = model(name, exact=exact), tokens(3, 12)
    _, state = ours(text[:, :6], ours.initial_state(3, capacity=12))
    _, mine = ours(text[:, :6], ours.initial_state(3, capacity=12))
    for t in range(6, 12):
        expected, state = ours.step(text[:, t], state)
        found, mine = ours.step(text[:, t], mine, in_place=True)
        assert torch.equal(found, expected)
    assert same(mine, state)


@torch.no_grad()
def test_a_step_in_place_copies_no_cache() -> None:
    ours = model("transformer")
    _, state = ours(tokens(2, 3), ours.initial_state(2, capacity=8))
    _, after = ours.step(tokens(2, 1)[:, 0], state, in_place=True)
    for before, now in zip(cast(list[AttentionState], state), cast(list[AttentionState], after), strict=True):
        assert (now.k.data_ptr(), now.v.data_ptr()) == (before.k.data_ptr(), before.v.data_ptr())


def test_tokens_that_were_yielded_stay_as_they_are() -> None:
    ours, prompt = model("mamba"), tokens(2, 3)
    kept = list(generate(ours, prompt, 6, seed=1))
    one_by_one = [step.clone() for step in generate(ours, prompt, 6, seed=1)]
    assert all(torch.equal(a, b) for a, b in zip(kept, one_by_one, strict=True))
    assert not torch.equal(kept[0], kept[1]) or not torch.equal(kept[1], kept[2])


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_values_are_read_a_step_late_and_all_of_them_in_order(count: int) -> None:
    asked: list[int] = []

    def steps() -> Iterator[Tensor]:
        for number in range(count):
            asked.append(number)
            yield torch.tensor([number, 10 * number])

    seen = []
    for number, row in enumerate(read_back(steps())):
        assert len(asked) == min(number + 2, count)
        seen.append(row)
    assert seen == [[number, 10 * number] for number in range(count)]


@pytest.mark.parametrize(
    ("prompt", "error", "says"),
    [
        ([], TypeError, "prompt is list, expected a torch.Tensor, or a sequence of at least one"),
        ("text", TypeError, r"prompt\[0\] is str, expected a torch.Tensor"),
        ([torch.tensor([1, 2]), torch.tensor([[3]])], ValueError, r"prompt\[1\] has shape \(1, 1\), expected \(time\)"),
        ([torch.tensor([1]), torch.tensor([], dtype=torch.int64)], ValueError, r"prompt\[1\] has shape \(0,\)"),
        ([torch.tensor([1.0])], TypeError, r"prompt\[0\] has dtype torch.float32"),
        ([torch.tensor([1]), torch.tensor([64])], ValueError, r"prompt\[1\] is 64, expected numbers from 0 to 63"),
        (7, TypeError, "prompt is int"),
    ],
)
def test_prompts_that_do_not_fit_are_refused_by_name(prompt: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=f"^generate: {says}"):
        generate(LanguageModel(CONFIGS["mamba"]), prompt, 1)


def same(a: Any, b: Any) -> bool:
    """Whether two states have equal tensors."""
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    return a is b or all(same(x, y) for x, y in zip(a, b, strict=True))
