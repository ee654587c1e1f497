"""gated_delta_rule with keys that come again and again, and with rows of a million steps and more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks.large import drawn

import retrograd
from retrograd.ops.gated_delta_rule import reference
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import Arrays, call, leaves, upcast

pytestmark = pytest.mark.gpu

SIZE = 128  # channels of keys and of values
MILLION = 2**20
DRAWS = 8  # of equal keys: their errors differ much from draw to draw
UNIT: dict[str, Any] = {"normalize_qk": True}
each_kind = pytest.mark.parametrize("of_channels", [False, True], ids=["of heads", "of channels"])


def arrays(steps: int, heads: int, of_channels: bool, generator: torch.Generator) -> Arrays:
    """The arguments of a row; states decay in tens of steps."""
    q, k, v = (drawn((1, steps, heads, SIZE), generator) for _ in range(3))
    channels = (SIZE,) if of_channels else ()
    g, beta = (drawn((1, steps, heads, *more), generator) for more in (channels, ()))
    return {"q": q, "k": k, "v": v, "g": g.abs_().div_(-8), "beta": beta.sigmoid_()}


@each_kind
@pytest.mark.parametrize(("rate", "log_decay"), [(2.0, 0.0), (1.0, 0.0), (1.0, -200.0), (0.0, -0.1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_repeated_keys_full_rates_and_full_decays_keep_the_error_budget(
    dtype: torch.dtype, rate: float, log_decay: float, of_channels: bool, seed: int
) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    draws = []
    for _ in range(DRAWS):
        inputs = {name: x.to(dtype) for name, x in arrays(200, 2, of_channels, generator).items()}
        inputs["k"] = inputs["k"][:, :1].expand_as(inputs["k"]).contiguous()
        inputs["g"], inputs["beta"] = torch.full_like(inputs["g"], log_decay), torch.full_like(inputs["beta"], rate)
        do = drawn((1, 200, 2, SIZE), generator).to(dtype)
        found = call(retrograd.gated_delta_rule, inputs, UNIT, [do])
        assert all(bool(x.isfinite().all()) for x in found.values())
        # What g gets is 0, or nearly so, and without decays so is beta's: a relative error says nothing.
        cancelled = ("d g", "d beta") if log_decay == 0 else ("d g",)
        found = {name: x for name, x in found.items() if name not in cancelled}
        plain = call(reference.plain, inputs, UNIT, [do])
        exact = call(reference.plain, {name: upcast(x) for name, x in inputs.items()}, UNIT, [upcast(do)])
        draws.append((found, plain, exact))
    assert_within_budget(draws, f"rate {rate}, log decay {log_decay}")


@each_kind
@pytest.mark.parametrize("heads", [1, pytest.param(17, marks=pytest.mark.slow, id="17, beyond 32 bits")])
@pytest.mark.usefixtures("large_arrays")
def test_a_million_steps_have_the_bits_of_two_calls_that_pass_the_state_on(
    heads: int, of_channels: bool, seed: int
) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    inputs = arrays(MILLION, heads, of_channels, generator)
    do = drawn((1, MILLION, heads, SIZE), generator)
    cut, compared = MILLION - 3 * 1024, slice(MILLION - 9 * 1024, None)
    whole = {n: x[:, compared].clone() for n, x in call(retrograd.gated_delta_rule, inputs, UNIT, [do]).items()}
    torch.cuda.empty_cache()
    early, late = (leaves({name: x[:, at] for name, x in inputs.items()}) for at in (slice(0, cut), slice(cut, None)))
    rule: Any = retrograd.gated_delta_rule
    o, state = rule(**early, **UNIT, return_final_state=True)
    handed = state.detach().requires_grad_()
    o_late = rule(**late, **UNIT, initial_state=handed)
    o_late.backward(do[:, cut:])
    torch.autograd.backward([o, state], [do[:, :cut], handed.grad])
    assert torch.equal(whole["y"], torch.cat((o[:, compared], o_late), 1))
    for name in inputs:
        before, after = early[name].grad, late[name].grad
        assert before is not None
        assert after is not None
        assert torch.equal(whole[f"d {name}"], torch.cat((before[:, compared], after), 1)), f"d {name}"
