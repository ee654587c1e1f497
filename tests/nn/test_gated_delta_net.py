"""The layer of the gated delta rule is that of Qwen3-Next; its gates; what it refuses."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrograd.nn import GatedDeltaNet, GatedDeltaNetConfig, GatedDeltaNetState
from retrograd.nn.gates import sigmoid, softplus

CONFIG = GatedDeltaNetConfig(num_heads=4, num_heads_qk=2, head_dim_qk=32, head_dim_v=32)
D_MODEL, TIME = 24, 130


def qwen() -> nn.Module:
    """The layer of transformers, with random weights, on its path without kernels of others."""
    modeling: Any = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    config = modeling.Qwen3NextConfig(
        hidden_size=D_MODEL,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_value_heads=CONFIG.num_heads,
        linear_num_key_heads=CONFIG.groups,
        linear_key_head_dim=CONFIG.head_dim_qk,
        linear_value_head_dim=CONFIG.head_dim_v,
        linear_conv_kernel_dim=CONFIG.d_conv,
        rms_norm_eps=CONFIG.norm_eps,
    )
    torch.manual_seed(0)
    layer: nn.Module = modeling.Qwen3NextGatedDeltaNet(config, 0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return layer


def from_qwen(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters, or their gradients, of transformers' layer under our names; its projections are by key heads."""
    each = CONFIG.num_heads // CONFIG.groups
    sizes = (CONFIG.head_dim_qk, CONFIG.head_dim_qk, each * CONFIG.head_dim_v, each * CONFIG.head_dim_v)
    others = dict(weights)
    qkvz = others.pop("in_proj_qkvz.weight").unflatten(0, (CONFIG.groups, -1)).split(sizes, 1)
    ba = others.pop("in_proj_ba.weight").unflatten(0, (CONFIG.groups, -1)).split((each, each), 1)
    return others | {"in_proj.weight": torch.cat([part.flatten(0, 1) for part in (*qkvz, *ba)])}


def test_it_has_the_results_and_gradients_of_qwen3_next() -> None:
    theirs, ours = qwen(), GatedDeltaNet(D_MODEL, CONFIG)
    ours.load_state_dict(from_qwen(theirs.state_dict()))
    u = torch.randn(2, TIME, D_MODEL)
    mine, other = u.clone().requires_grad_(), u.clone().requires_grad_()
    y, expected = ours(mine)[0], theirs(other)
    torch.testing.assert_close(y, expected, atol=2e-5, rtol=1e-4)
    pull = torch.randn_like(y)
    y.backward(pull)
    expected.backward(pull)
    torch.testing.assert_close(mine.grad, other.grad, atol=1e-4, rtol=1e-3)
    gradients = from_qwen({name: p.grad for name, p in theirs.named_parameters() if p.grad is not None})
    for name, parameter in ours.named_parameters():
        scale = gradients[name].abs().max().item()
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-4 * scale, rtol=1e-3)


def test_its_rates_and_steps_are_drawn_from_their_ranges() -> None:
    torch.manual_seed(0)
    config = GatedDeltaNetConfig(64, head_dim_qk=1, head_dim_v=1, A_init_range=(2, 3), dt_min=0.01, dt_max=0.03)
    layer = GatedDeltaNet(8, config)
    delta = F.softplus(layer.dt_bias)
    assert 0.0099 < delta.min() < 0.012
    assert 0.027 < delta.max() < 0.0301
    assert -3 <= layer.A.min() < -2.8
    assert -2.2 < layer.A.max() <= -2


def test_gates_are_pytorchs_with_bits_that_no_place_changes() -> None:
    x = torch.cat((torch.randn(1001) * 8, torch.tensor([0.0, -200.0, 200.0, -17.0, 17.0])))
    for ours, theirs in ((softplus, F.softplus), (sigmoid, torch.sigmoid)):
        mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        y = ours(mine)
        torch.testing.assert_close(y, theirs(other), atol=1e-6, rtol=1e-5)
        y.sum().backward()
        theirs(other).sum().backward()
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-6, rtol=1e-5)
        for start in range(20):
            assert torch.equal(ours(x[start:]), y[start:])


def state(**fields: Any) -> GatedDeltaNetState:
    return LAYER.initial_state(2)._replace(**fields)


LAYER = GatedDeltaNet(D_MODEL, CONFIG)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda u: GatedDeltaNet(0, CONFIG), ValueError, "GatedDeltaNet: d_model is 0, expected an integer"),
        (
            lambda u: GatedDeltaNet(8, cast(Any, 4)),
            TypeError,
            "GatedDeltaNet: config is int, expected a GatedDeltaNetConfig",
        ),
        (lambda u: LAYER(u[:, 0]), ValueError, r"GatedDeltaNet: u has shape \(2, 24\), expected \(batch, time, d_mod"),
        (lambda u: LAYER(u.double()), TypeError, "GatedDeltaNet: u has dtype torch.float64, expected torch.float32"),
        (lambda u: LAYER(u, (1, 2)), TypeError, "GatedDeltaNet: state is tuple, expected a GatedDeltaNetState"),
        (lambda u: LAYER(u, state(recurrent=None)), TypeError, "GatedDeltaNet: state.recurrent is NoneType, expected"),
        (lambda u: LAYER(u, context=1), ValueError, "GatedDeltaNet: context is 'given', expected None: its steps"),
        (lambda u: LAYER(u, state(window=1)), ValueError, "GatedDeltaNet: state.window is 'a window', expected None"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=f"^{says}"):
        call(torch.randn(2, 4, D_MODEL))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_heads": 0}, "num_heads is 0, expected an integer of at least 1"),
        ({"num_heads_qk": 3}, "num_heads_qk is 3, expected a divisor of num_heads=4"),
        ({"num_heads_qk": 0}, "num_heads_qk is 0, expected None or an integer of at least 1"),
        ({"A_init_range": (0, 1)}, r"A_init_range is \(0, 1\), expected two numbers, finite, the smaller one first"),
        ({"negative_eigenvalues": 2}, "negative_eigenvalues is 2, expected True or False"),
        ({"dt_min": 0.2}, "dt_min is 0.2 and dt_max 0.1, expected 0 < dt_min <= dt_max"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^GatedDeltaNetConfig: {says}"):
        GatedDeltaNetConfig(**{"num_heads": 4} | given)
