"""retrograd.nn on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd.nn import Attention, AttentionConfig, LanguageModel, Mamba2Config, MambaConfig, generate

pytestmark = pytest.mark.gpu
CONFIG = MambaConfig(d_model=256, n_layer=3, vocab_size=253)
HYBRID = MambaConfig(
    d_model=256,
    n_layer=3,
    vocab_size=253,
    d_intermediate=512,
    ssm_cfg=Mamba2Config(),
    attn_layer_idx=(1,),
    attn_cfg=AttentionConfig(num_heads=4, num_heads_kv=2, d_conv=4, rotary_emb_dim=32, qk_norm=True, window=100),
)
each_config = pytest.mark.parametrize("config", [CONFIG, HYBRID], ids=["mamba", "hybrid"])


def trained(
    config: MambaConfig, device: str, dtype: torch.dtype, *, compiled: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one batch and every gradient, from one seed."""
    torch.manual_seed(0)
    model = LanguageModel(config)
    ids = torch.randint(config.vocab_size, (4, 513))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    wide = ("A_log", ".D", "dt_bias")
    rounded = {name: p if name.endswith(wide) else p.to(dtype) for name, p in weights.items()}
    model = LanguageModel(config, device=device, dtype=dtype)
    model.load_state_dict(rounded, strict=False)
    if device == "cpu":
        model = model.double()
    run = torch.compile(model, fullgraph=True) if compiled else model
    ids = ids.to(device)
    loss = F.cross_entropy(run(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float32, 2**-22), (torch.bfloat16, 2**-9)])
@each_config
def test_gradients_on_a_gpu_are_those_of_float64(
    config: MambaConfig, dtype: torch.dtype, roundings: float, compiled: bool
) -> None:
    loss, gradients = trained(config, "cuda", dtype, compiled=compiled)
    exact, expected = trained(config, "cpu", dtype)
    # In float32 the hardware's exponential has the largest rounding, 2^-22.
    # Some twenty roundings between a weight and the loss add up like a random walk, with a safety factor.
    assert abs(loss.item() - exact.item()) <= 20 * roundings * exact.item()
    for name, gradient in gradients.items():
        error = (gradient.double().cpu() - expected[name]).norm() / expected[name].norm()
        assert error <= 40 * roundings, f"{name}: {error:.2e}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_config
def test_two_runs_give_the_same_bits(config: MambaConfig, dtype: torch.dtype) -> None:
    (first, gradients), (second, again) = (trained(config, "cuda", dtype) for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(gradients[name], again[name]) for name in gradients)


@each_config
def test_steps_take_the_tokens_that_the_whole_forward_takes(config: MambaConfig) -> None:
    torch.manual_seed(0)
    model = LanguageModel(config, device="cuda")
    text = torch.randint(config.vocab_size, (2, 70), device="cuda")
    generated = torch.stack(list(generate(model, text, 20, temperature=0.0)), 1)
    for t in range(20):
        assert torch.equal(model(text)[:, -1, : config.vocab_size].argmax(-1), generated[:, t])
        text = torch.cat((text, generated[:, t : t + 1]), 1)


def test_steps_beyond_the_capacity_are_nan_and_nothing_waits_for_the_gpu() -> None:
    torch.manual_seed(0)
    layer = Attention(64, AttentionConfig(num_heads=4, rotary_emb_dim=8, d_conv=4), device="cuda")
    u, before = torch.randn(2, 40, 64, device="cuda"), layer.initial_state(2, capacity=40)
    before = before._replace(steps=torch.tensor([0, 3], dtype=torch.int32, device="cuda"))
    layer.step(u[:, 0], before)  # compiles
    expected, _ = layer(u)
    torch.cuda.set_sync_debug_mode("error")
    try:
        y, state = layer(u, before)
        row, _ = layer.step(u[:, 0], state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(y[0], expected[0])
    assert y[1].isnan().all()
    assert row.isnan().all()
