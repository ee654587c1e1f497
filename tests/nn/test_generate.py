"""Generation of several rows at once: prompts of any lengths, steps in place, values read while others are computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from exact_models import CONFIGS, SIZES, each_model, model, tokens
from torch import Tensor

from retrograd.core.torch.launch import STEADY
from retrograd.nn import AttentionState, LanguageModel, Mixer, generate, read_back, score, states, steps
from retrograd.nn.sampling import Sampling

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


def test_kernels_may_read_weights_early_in_steps_of_generation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, seen = model("mamba"), []
    for name in ("forward", "step"):
        whole = getattr(ours.backbone, name)

        def noting(*args: Any, name: str = name, whole: Any = whole, **options: Any) -> Any:
            seen.append((name, STEADY.weights))
            return whole(*args, **options)

        monkeypatch.setattr(ours.backbone, name, noting)
    for _ in generate(ours, tokens(2, 3), 3):
        assert not STEADY.weights
    assert seen == [("forward", False), ("step", True), ("step", True)]


class LastThree(Mixer):
    """Adds up the last three inputs. Two are its state, the newest first: after `forward` views of one array."""

    def initial_state(self, batch: int, dtype: torch.dtype | None = None, *, capacity: int | None = None) -> Any:
        return torch.zeros(2, batch, SIZES.d_model, dtype=dtype).unbind()

    def divide_output(self, by: float) -> None:
        pass

    def forward(self, u: Tensor, state: Any = None, *, cu_seqlens: Tensor | None = None) -> Any:
        before = self.initial_state(len(u), u.dtype) if state is None else state
        all_inputs = torch.cat((torch.stack(before[::-1], 1), u), 1)
        out = all_inputs[:, :-2] + 2 * all_inputs[:, 1:-1] + u
        return out, None if state is None else (all_inputs[:, -1], all_inputs[:, -2])

    def step(self, u: Tensor, state: Any, *, in_place: bool = False) -> Any:
        return state[1] + 2 * state[0] + u, (u, state[0])


def test_a_step_may_give_a_tensor_what_another_one_had() -> None:
    ours, prompt = model("mamba", exact=False), tokens(2, 5)
    ours.backbone.blocks[1].mixer = LastThree()
    draws = generate(ours, prompt, 8, seed=1, log_probabilities=True)
    drawn, found = (torch.stack(each, 1) for each in zip(*draws, strict=True))
    torch.testing.assert_close(found, score(ours, torch.cat((prompt, drawn), 1))[:, 4:])


def test_new_values_may_lie_in_tensors_that_are_overwritten() -> None:
    three = torch.arange(6.0).view(3, 2)
    state = states.apart([three[0], three[1], three[2:].expand(2, 2)])
    states.overwrite(state, [state[1], state[0], state[2].flip(0) + 1])
    assert [part.tolist() for part in state] == [[2, 3], [0, 1], [[5, 6], [5, 6]]]


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ([torch.zeros(2, 1), torch.zeros(2, 3)], r"state has shape \(2, 1\), expected \(2, 3\), as before the step"),
        ([torch.zeros(2, 3), torch.zeros(2, 3)], "state has a tensor in two places"),
    ],
)
def test_new_states_that_cannot_overwrite_the_old_are_refused(after: list[Tensor], says: str) -> None:
    one = torch.ones(2, 3)
    with pytest.raises(ValueError, match=f"^generate: {says}"):
        states.overwrite([one, one], after)


@torch.no_grad()
def test_a_window_after_packed_prompts_is_dense_so_that_kernels_can_overwrite_it() -> None:
    ours, (rows, bounds) = model("mamba2"), (tokens(1, 7), torch.tensor([0, 3, 7], dtype=torch.int32))
    logits, state = ours(rows, ours.initial_state(2), cu_seqlens=bounds)
    own = steps.Steps(ours, state, logits[0, [2, 6]], Sampling())
    own.advance(torch.zeros(2, dtype=torch.float64), 1)
    assert all(tensor.is_contiguous() for tensor in states.tensors(own.state))


def test_tokens_that_were_yielded_stay_as_they_are() -> None:
    ours, prompt = model("mamba"), tokens(2, 3)
    kept = list(generate(ours, prompt, 6, seed=1))
    one_by_one = [step.clone() for step in generate(ours, prompt, 6, seed=1)]
    assert all(torch.equal(a, b) for a, b in zip(kept, one_by_one, strict=True))
    assert not torch.equal(kept[0], kept[1]) or not torch.equal(kept[1], kept[2])


class Noted:
    """A graph or a stream that notes what is done with it."""

    def __init__(self, name: str, noted: list[Any]) -> None:
        self.name, self.noted = name, noted

    def capture_begin(self, **how: Any) -> None:
        self.noted.append("begin")

    def capture_end(self) -> None:
        self.noted.append("end")

    def wait_stream(self, other: Noted) -> None:
        self.noted.append(f"{self.name} waits for {other.name}")


def test_a_graph_is_captured_on_a_stream_of_the_device_of_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []

    @contextmanager
    def opened(what: Any) -> Iterator[None]:
        noted.append(getattr(what, "name", what))
        yield

    there = torch.device("cuda", 1)
    monkeypatch.setattr(steps, "capture_stream", lambda device: Noted(f"stream of {device}", noted))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Noted("ours", noted))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Noted("graph", noted))
    monkeypatch.setattr(torch.cuda, "device", opened)
    monkeypatch.setattr(torch.cuda, "stream", opened)
    steps.captured(lambda: noted.append("a step"), there)
    before = [there, "stream of cuda:1 waits for ours", "stream of cuda:1"]
    assert noted == [*before, "begin", "a step", "end", "ours waits for stream of cuda:1"]


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


def test_only_tokens_are_read_back() -> None:
    draws: Any = generate(model("mamba"), tokens(1, 2), 3, log_probabilities=True)
    with pytest.raises(TypeError, match=r"^read_back: tokens is tuple, expected tensors"):
        next(read_back(draws))


def test_a_row_ends_with_a_stop_token_and_the_last_row_ends_all() -> None:
    ours, prompt = model("hybrid"), tokens(3, 4)
    free = torch.stack(list(generate(ours, prompt, 200, seed=2)), 1)
    stop = [int(free[row, at]) for row, at in enumerate((5, 2, 9))]
    ends = [min(row.index(token) for token in stop if token in row) for row in free.tolist()]
    draws = generate(ours, prompt, 200, seed=2, stop=stop, log_probabilities=True)
    drawn, found = (torch.stack(each, 1) for each in zip(*draws, strict=True))
    assert drawn.shape[1] == max(ends) + 1
    for row, end in enumerate(ends):
        assert torch.equal(drawn[row, : end + 1], free[row, : end + 1])
        assert (drawn[row, end:] == drawn[row, end]).all()
        assert (found[row, : end + 1] < 0).all()
        assert not found[row, end + 1 :].any()
    assert len(list(generate(ours, prompt, 3, seed=2, stop=stop))) == min(3, max(ends) + 1)
    one = int(free[1, 2])
    assert len(list(generate(ours, prompt[1:2], 200, seed=3, stop=one))) == free[1].tolist().index(one) + 1


@pytest.mark.parametrize(
    ("stop", "error", "says"),
    [
        (60, ValueError, "stop is 60, expected numbers from 0 to 59"),
        ((3, -1), ValueError, "stop is -1, expected numbers from 0 to 59"),
        ("ab", TypeError, "stop is str, expected an integer, or a collection of integers"),
        (2.5, TypeError, "stop is float"),
        ((True,), TypeError, "stop is tuple"),
        (torch.tensor(3), TypeError, "stop is Tensor"),
        (torch.tensor([3]), TypeError, "stop is Tensor"),
    ],
)
def test_a_stop_token_that_cannot_be_is_refused(stop: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=f"^generate: {says}"):
        generate(model("mamba"), tokens(1, 2), 1, stop=stop)


@pytest.mark.parametrize("token", [60, 63, -1])
def test_a_token_without_a_logit_has_no_score(token: int) -> None:
    found, says = torch.tensor([[1, token, 3]]), rf"is {token}, expected numbers from 0 to 59 \(vocab_size=60\)"
    with pytest.raises(ValueError, match=f"^score: tokens {says}"):
        score(model("mamba"), found)
    with pytest.raises(ValueError, match=rf"^score: tokens\[0\] {says}"):
        score(model("mamba"), [found[0]])


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("time", [1, 3])
def test_there_may_be_no_rows(count: int, time: int) -> None:
    ours, none = model("hybrid"), tokens(0, time)
    assert [step.shape for step in generate(ours, none, count, log_probabilities=False)] == [(0,)] * count
    assert score(ours, none).shape == (0, time - 1)


@each_model
def test_scores_of_rows_of_different_lengths_are_those_of_each_alone_with_their_gradients(name: str) -> None:
    ours, rows = model(name), [tokens(1, length)[0] for length in (9, 1, 70, 4)]
    found = score(ours, rows, temperature=0.7)
    for own, row in zip(found, rows, strict=True):
        assert torch.equal(own, score(ours, row[None], temperature=0.7)[0])
    sum(own.sum() for own in found).backward()  # type: ignore[union-attr]
    assert all(parameter.grad is not None for parameter in ours.parameters())
    assert [len(own) for own in score(ours, [rows[1], rows[1]])] == [0, 0]


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
        (torch.zeros(1, 2, dtype=torch.int64, device="meta"), ValueError, "device of prompt is 'meta', expected cpu"),
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
