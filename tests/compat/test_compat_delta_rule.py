"""Models of gated delta rules have, on retrograd's functions, what they have on transformers' own; fla's arguments.

Tolerances are those of `test_compat_transformers.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compat_models import DELTA, ours
from test_compat_transformers import TIME, assert_as_close, three, tokens
from torch import Tensor

import retrograd
from retrograd.compat import report
from retrograd.compat.fla.ops import (
    chunk_gated_delta_rule,
    chunk_kda,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_kda,
)
from retrograd.compat.transformers import register

each_model = pytest.mark.parametrize("name", DELTA)


def functions(name: str) -> tuple[str, str]:
    """Those of whole sequences and of steps of generation."""
    return ("chunk_kda", "fused_recurrent_kda") if name == "kimi_linear" else (
        "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")  # fmt: skip


@each_model
def test_logits_and_all_gradients_are_those_of_the_slow_path(name: str, seed: int) -> None:
    *models, calls = three(name)
    found = []
    for model in models:
        result = model.train()(tokens(seed), labels=tokens(seed), use_cache=False)
        result.loss.backward()
        found.append({"logits": result.logits.detach()} | {n: p.grad for n, p in model.named_parameters()})
    model, moved, mine = found
    assert functions(name)[0] in calls
    for what, value in model.items():
        if value is None:
            assert mine[what] is None, what
        else:
            assert_as_close(mine[what], value, moved[what], what)


@each_model
def test_greedy_generation_gives_the_tokens_and_scores_of_the_slow_path(name: str, seed: int) -> None:
    *models, calls = three(name)
    options = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    generated = [model.eval().generate(tokens(seed, time=9), **options) for model in models]
    model, moved, mine = (torch.stack(each.scores) for each in generated)
    assert torch.equal(generated[2].sequences, generated[0].sequences)
    assert_as_close(mine, model, moved, "scores")
    assert set(functions(name)) <= set(calls)


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5", "olmo_hybrid"])
def test_packed_sequences_have_what_each_has_alone(name: str, seed: int) -> None:
    mine, _ = ours(name, attn_implementation=register())
    ids, lengths = tokens(seed, batch=1), [8, TIME - 8]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    numbers = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths))[None].int()
    bounds = torch.tensor([0, 8, TIME], dtype=torch.int32)
    lengths_and_bounds = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 13, "max_length_k": 13}
    packed = mine(ids, position_ids=positions, seq_idx=numbers, use_cache=False, **lengths_and_bounds).logits[0]
    alone = torch.cat([mine(part, use_cache=False).logits[0] for part in ids.split(lengths, 1)])
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)


@each_model
def test_a_model_is_reported_to_run_on_retrograd(name: str) -> None:
    model, _ = ours(name)
    scan, *_ = report(model).lines
    assert (scan.kind, scan.ours) == ("scan", True)


def drawn(channels: bool, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    g = normal(1, 30, 4, *((8,) if channels else ()))
    return {"q": normal(1, 30, 2, 8), "k": normal(1, 30, 2, 8), "v": normal(1, 30, 4, 6), "g": g,
            "beta": normal(1, 30, 4), "initial_state": normal(2, 4, 8, 6)}  # fmt: skip


@pytest.mark.parametrize("function", [chunk_gated_delta_rule, chunk_kda, fused_recurrent_gated_delta_rule,
                                      fused_recurrent_kda], ids=lambda f: f.__name__)  # fmt: skip
def test_gates_rates_states_and_bounds_are_those_of_the_formulas(function: Any, seed: int) -> None:
    channels = "kda" in function.__name__
    inputs = drawn(channels, seed)
    bounds = torch.tensor([0, 11, 30], dtype=torch.int32)
    A_log, dt_bias = torch.randn(4), torch.randn(32 if channels else 4)
    options = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
    o, state = function(
        **inputs,
        **options,
        A_log=A_log,
        dt_bias=dt_bias,
        scale=0.3,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=bounds,
    )
    wide = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    rates = A_log.double().exp()
    gated = F.softplus(wide["g"] + (dt_bias.double().view(4, 8) if channels else dt_bias.double()))
    expected, final = retrograd.gated_delta_rule(
        wide["q"],
        wide["k"],
        wide["v"],
        -(rates[:, None] if channels else rates) * gated,
        2 * wide["beta"].sigmoid(),
        scale=0.3,
        initial_state=wide["initial_state"].transpose(2, 3),
        cu_seqlens=bounds,
        return_final_state=True,
        normalize_qk=True,
    )
    for found, wanted in ((o, expected), (state, final.transpose(2, 3))):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)
    (o.square().sum() + state.square().sum()).backward()
    (expected.square().sum() + final.square().sum()).backward()
    for name, x in inputs.items():
        assert x.grad is not None
        torch.testing.assert_close(x.grad.double(), wide[name].grad, rtol=1e-3, atol=1e-4, msg=name)


def test_a_lower_bound_bounds_log_decays() -> None:
    inputs = {name: x.detach() for name, x in drawn(True, 1).items() if name != "initial_state"}
    o, _ = chunk_kda(**inputs, use_gate_in_kernel=True, lower_bound=-5.0)
    expected, _ = chunk_kda(**{**inputs, "g": -5.0 * inputs["g"].sigmoid()})
    torch.testing.assert_close(o, expected)


def test_logs_of_rates_may_have_axes_of_one_element() -> None:
    inputs = {name: x.detach() for name, x in drawn(True, 1).items() if name != "initial_state"}
    A_log, dt_bias = torch.randn(4), torch.randn(32)
    o, _ = chunk_kda(**inputs, use_gate_in_kernel=True, A_log=A_log, dt_bias=dt_bias)
    other, _ = chunk_kda(**inputs, use_gate_in_kernel=True, A_log=A_log.view(1, 1, 4, 1), dt_bias=dt_bias)
    assert torch.equal(o, other)


def test_states_may_have_values_first() -> None:
    inputs = {name: x.detach() for name, x in drawn(False, 2).items()}
    inputs["initial_state"] = inputs["initial_state"][:1]
    o, state = chunk_gated_delta_rule(**inputs, output_final_state=True)
    turned = {**inputs, "initial_state": inputs["initial_state"].transpose(2, 3)}
    other, final = chunk_gated_delta_rule(**turned, output_final_state=True, state_v_first=True)
    assert state is not None
    assert final is not None
    assert torch.equal(o, other)
    assert torch.equal(state, final.transpose(2, 3))
    with pytest.warns(DeprecationWarning, match="transpose_state_layout is the older name of state_v_first"):
        older, _ = chunk_gated_delta_rule(**turned, output_final_state=True, transpose_state_layout=True)
    assert torch.equal(o, older)


def test_decays_of_channels_are_taken_in_steps_of_generation_too() -> None:
    inputs = {name: x.detach() for name, x in drawn(True, 3).items() if name != "initial_state"}
    inputs["g"] = -inputs["g"].exp()
    o, _ = chunk_kda(**inputs)
    other, _ = fused_recurrent_gated_delta_rule(gk=inputs.pop("g"), **inputs)
    assert torch.equal(o, other)


@pytest.mark.parametrize("channels", [False, True], ids=["of heads", "of channels"])
@pytest.mark.parametrize("v_first", [False, True], ids=["keys first", "values first"])
def test_a_single_step_is_the_recurrence_and_leaves_the_given_state_alone(channels: bool, v_first: bool) -> None:
    chunk, recurrent = (chunk_kda, fused_recurrent_kda) if channels else (
        chunk_gated_delta_rule, fused_recurrent_gated_delta_rule)  # fmt: skip
    given = {name: x.detach() for name, x in drawn(channels, 5).items()}
    state = given.pop("initial_state")[:1]
    steps = {name: x[:, :1] for name, x in given.items()}
    steps["g"] = -steps["g"].exp()
    steps["initial_state"] = state.transpose(2, 3).contiguous() if v_first else state
    options: dict[str, Any] = {"output_final_state": True, "use_qk_l2norm_in_kernel": True, "state_v_first": v_first}
    before = steps["initial_state"].clone()
    for start in (steps["initial_state"], None):
        steps["initial_state"] = start
        o, final = chunk(**steps, **options)
        one, after = recurrent(**steps, **options)
        torch.testing.assert_close(one, o)
        torch.testing.assert_close(after, final)
        assert start is None or torch.equal(start, before)


@pytest.mark.parametrize("function", [chunk_gated_delta_rule, fused_recurrent_gated_delta_rule])
def test_queries_and_keys_may_be_wider_than_values(function: Any) -> None:
    inputs = {name: x.detach() for name, x in drawn(False, 7).items() if name != "initial_state"}
    inputs |= {"g": -inputs["g"].exp(), "v": inputs["v"].half()}
    o, _ = function(**inputs, use_qk_l2norm_in_kernel=True)
    expected, _ = function(**{**inputs, "v": inputs["v"].float()}, use_qk_l2norm_in_kernel=True)
    assert o.dtype == torch.float16
    assert torch.equal(o, expected.half())


def test_a_single_step_has_the_gradients_of_the_rule() -> None:
    inputs = {name: x if name == "initial_state" else x[:, :1] for name, x in drawn(False, 6).items()}
    inputs = {name: x[:1].detach().requires_grad_() for name, x in inputs.items()}

    def gradients(function: Any) -> tuple[Tensor, ...]:
        o, final = function(**{**inputs, "g": -inputs["g"].exp()}, output_final_state=True)
        return torch.autograd.grad(o.square().sum() + final.square().sum(), tuple(inputs.values()))

    found, expected = gradients(fused_recurrent_gated_delta_rule), gradients(chunk_gated_delta_rule)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"cp_context": object()}, "chunk_gated_delta_rule: cp_context is not supported"),
        ({"g": torch.zeros(1, 30, 2)}, r"chunk_gated_delta_rule: g has shape \(1, 30, 2\)"),
        ({"initial_state": torch.zeros(1, 4, 6, 8)}, "chunk_gated_delta_rule: initial_state has shape"),
        ({"use_gate_in_kernel": True}, "chunk_gated_delta_rule: A_log is None, expected a tensor"),
        ({"use_qk_l2norm_in_kernel": "yes"}, "chunk_gated_delta_rule: use_qk_l2norm_in_kernel is"),
        ({"k": torch.zeros(1, 30, 3, 8)}, "chunk_gated_delta_rule: k has shape"),
        ({"cu_seqlens": torch.tensor(30)}, "chunk_gated_delta_rule: cu_seqlens has shape"),
        ({"state_v_first": True, "transpose_state_layout": True}, "transpose_state_layout is True, expected None"),
        ({"use_gate_in_kernel": True, "A_log": torch.zeros(3)}, r"chunk_gated_delta_rule: A_log has shape \(3,\)"),
        ({"v": None}, "chunk_gated_delta_rule: v is None"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], expected: str) -> None:
    inputs = {name: x.detach() for name, x in drawn(False, 4).items() if name != "initial_state"}
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=expected):
        chunk_gated_delta_rule(**{**inputs, **wrong})


def test_steps_take_one_kind_of_decays_and_arrays_alone() -> None:
    inputs = {name: x.detach() for name, x in drawn(False, 5).items() if name != "initial_state"}
    without = {name: x for name, x in inputs.items() if name != "g"}
    for wrong, expected in (
        (without, "gk is None, expected one of g and gk"),
        ({**inputs, "v": None, "beta": None}, "v is None"),
    ):
        with pytest.raises((ValueError, TypeError), match=expected):
            fused_recurrent_gated_delta_rule(**wrong)
