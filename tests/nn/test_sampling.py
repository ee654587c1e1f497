"""How generated tokens are drawn: their shares, top-k, top-p, and rows that do not depend on each other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from retrograd.nn import LanguageModel, Mamba2Config, MambaConfig, generate
from retrograd.nn.sampling import BLOCK, Sampling, Uniforms

LOGITS = torch.tensor([2.0, -1.0, 0.5, 2.5, -3.0, 0.5])
GRID = 20_000


def shares(sampling: Sampling) -> torch.Tensor:
    """The share of each token, over uniform numbers at equal distances."""
    uniform = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    tokens = sampling.draw(LOGITS.expand(GRID, -1), uniform)
    return torch.bincount(tokens, minlength=len(LOGITS)) / GRID


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_have_the_shares_of_their_probabilities(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, -1)
    torch.testing.assert_close(shares(Sampling(temperature)), expected, atol=2 / GRID, rtol=0)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=1), [3]),
        (Sampling(top_k=3), [3, 0, 2]),  # of two alike the first
        (Sampling(top_k=100), [0, 1, 2, 3, 4, 5]),
        (Sampling(top_p=0.5), [3]),
        (Sampling(top_p=0.6), [3, 0]),
        (Sampling(top_p=1e-9), [3]),
        (Sampling(top_p=0.999999), [0, 1, 2, 3, 4, 5]),
        (Sampling(top_k=1, top_p=0.6), [3]),
        (Sampling(temperature=0.0, top_k=3), [3]),
    ],
)
def test_only_the_likeliest_are_drawn_in_their_proportions(sampling: Sampling, kept: list[int]) -> None:
    expected = torch.zeros(len(LOGITS)).scatter(0, torch.tensor(kept), torch.softmax(LOGITS, -1)[kept])
    found = shares(sampling)
    assert torch.equal(found > 0, expected > 0)
    torch.testing.assert_close(found, expected / expected.sum(), atol=2 / GRID, rtol=0)


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf, 1.0, -torch.inf]])
    for uniform, token in ((0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2**-53, 3)):
        assert int(Sampling().draw(logits, torch.tensor([uniform], dtype=torch.float64))) == token


def test_the_likeliest_is_taken_where_all_are_nearly_alike() -> None:
    for temperature in (1e9, 1e39, 1e300):
        assert int(Sampling(temperature, top_k=1).draw(LOGITS[None], torch.tensor([0.9]))) == 3


@pytest.mark.parametrize("temperature", [1e39, 1e308, 1e-44, 5e-324])
def test_no_temperature_draws_a_token_of_no_probability(temperature: float) -> None:
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf, 1.0, -torch.inf]])
    for uniform, token in ((0.0, 1), (0.4999, 1), (0.5, 3)):
        assert int(Sampling(temperature).draw(logits, torch.tensor([uniform]))) == token
    found = Sampling(temperature).log_probabilities(logits.expand(2, -1), torch.tensor([0, 1]))
    torch.testing.assert_close(found, torch.tensor([-torch.inf, math.log(0.5)]))


@pytest.mark.parametrize("size", [4, 5, 256])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=3), Sampling(top_p=0.9)], ids=str)
def test_no_token_is_drawn_from_logits_that_are_not_finite(sampling: Sampling, size: int) -> None:
    logits = torch.zeros(5, size)
    logits[1] = torch.nan
    logits[2, 1] = torch.nan
    logits[3, 2] = torch.inf
    logits[4] = -torch.inf
    assert sampling.draw(logits, torch.full((5,), 0.3)).tolist()[1:] == [-1] * 4
    assert sampling.draw(logits, torch.full((5,), 0.3))[0] >= 0


@pytest.mark.parametrize("how", [{}, {"top_k": 3}, {"log_probabilities": True}], ids=str)
def test_logits_that_become_nan_later_are_refused(how: dict[str, Any]) -> None:
    model, prompt = LanguageModel(MambaConfig(d_model=16, n_layer=1, vocab_size=50)), torch.randint(50, (2, 3))
    drawn = generate(model, prompt, 5, **how)
    next(drawn)
    with torch.no_grad():
        model.backbone.norm_f.weight[3] = torch.nan
    with pytest.raises(ValueError, match=r"^generate: model has NaN or infinite logits for token 1"):
        next(drawn)


def test_a_row_draws_the_same_tokens_in_any_batch() -> None:
    torch.manual_seed(0)
    config = MambaConfig(d_model=32, n_layer=2, vocab_size=50, ssm_cfg=Mamba2Config(d_state=16, headdim=8))
    model, prompt = LanguageModel(config, exact=True), torch.randint(50, (4, 6))

    def drawn(rows: slice, seed: Any) -> torch.Tensor:
        return torch.stack(list(generate(model, prompt[rows], 30, top_p=0.9, seed=seed)), 1)

    whole = drawn(slice(0, 4), torch.tensor([5, 9, 2**62, 0]))
    assert torch.equal(drawn(slice(2, 3), torch.tensor([2**62])), whole[2:3])
    assert torch.equal(drawn(slice(1, 2), 9), whole[1:2])
    assert torch.equal(drawn(slice(0, 4), 7), drawn(slice(0, 4), torch.tensor([7, 8, 9, 10])))


def test_numbers_of_a_row_go_on_beyond_a_block() -> None:
    ours, other = Uniforms([3, 4], torch.device("cpu")), Uniforms([4], torch.device("cpu"))
    for number in range(BLOCK + 3):
        pair, single = ours.at(number), other.at(number)
        assert pair[1] == single[0]
        assert 0 <= pair[0] < 1
    assert pair[0] != pair[1]


def test_all_bits_of_a_seed_count() -> None:
    numbers = Uniforms([1, 1 + 2**32, 1 + 2**62], torch.device("cpu")).at(0)
    assert len(set(numbers.tolist())) == 3


def test_without_a_seed_pytorch_draws_one() -> None:
    model, prompt = LanguageModel(MambaConfig(d_model=16, n_layer=1, vocab_size=50)), torch.randint(50, (2, 3))

    def drawn() -> torch.Tensor:
        return torch.stack(list(generate(model, prompt, 20)))

    torch.manual_seed(5)
    first = drawn()
    assert not torch.equal(first, drawn())
    torch.manual_seed(5)
    assert torch.equal(first, drawn())


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"top_k": 0}, ValueError, "generate: top_k is 0, expected an integer of at least 1"),
        ({"top_k": 2.5}, ValueError, "generate: top_k is 2.5"),
        ({"top_p": 0.0}, ValueError, r"generate: top_p is 0.0, expected a number above 0, 1 at most"),
        ({"top_p": 1.5}, ValueError, "generate: top_p is 1.5"),
        ({"top_p": "half"}, TypeError, "generate: top_p is str"),
        ({"seed": -1}, ValueError, r"generate: seed is -1, expected numbers from 0 to 2\^63 - 1"),
        ({"seed": torch.tensor([1, -4])}, ValueError, "generate: seed is -4"),
        ({"seed": torch.tensor([1, 2, 3])}, ValueError, r"generate: seed has shape \(3,\), expected \(batch=2,\)"),
        ({"seed": torch.tensor([0.5, 1.0])}, TypeError, "generate: seed is Tensor"),
        ({"seed": torch.tensor([True, False])}, TypeError, "generate: seed is Tensor"),
        ({"seed": True}, TypeError, "generate: seed is bool"),
    ],
)
def test_what_cannot_be_is_refused_at_the_call(how: dict[str, Any], error: type[Exception], says: str) -> None:
    model, prompt = LanguageModel(MambaConfig(d_model=16, n_layer=1, vocab_size=50)), torch.randint(50, (2, 3))
    with pytest.raises(error, match=f"^{says}"):
        generate(model, prompt, 1, **how)
