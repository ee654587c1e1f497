"""The training steps of models.py in PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from model_shapes import (
    COMPILED,
    CUDA,
    INSTALLED,
    MAMBA_SSM,
    MAMBA_SSM_COMPILED,
    NN,
    PATCHED,
    SLOW,
    TORCH,
    VOCABULARY,
    Model,
)
from model_step import Training
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

KERNELS = 60  # lines of a profile


class Language(NamedTuple):
    """A model, its loss on tokens (B, T), and the module of its kernels along time."""

    model: nn.Module
    loss: Callable[[Tensor], Tensor]
    kernels: str


def training(shape: Model, impl: str) -> Training:
    """The training of a model by an implementation."""
    torch.manual_seed(0)
    language = MAKERS[impl](shape, impl)
    parameters = list(language.model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    torch.manual_seed(1)  # the same tokens, however many numbers a model has drawn
    tokens = torch.randint(VOCABULARY, (shape.batch, shape.time), device="cuda")

    def step() -> Tensor:
        loss = language.loss(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return Training(
        step,
        torch.cuda.synchronize,
        sum(p.numel() for p in parameters),
        language.kernels,
        torch.cuda.max_memory_allocated,
        settle,
        profiled,
    )


def settle() -> None:
    """Give cached memory back, and begin to look for the peak."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def profiled(steps: Callable[[], Any]) -> str:
    """A table of the kernels that take the most time."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        steps()
    return recorded.key_averages().table("self_device_time_total", row_limit=KERNELS, max_name_column_width=110)


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean over all tokens but the first, as transformers has it."""
    after = F.pad(tokens[:, 1:], (0, 1), value=-100)
    return F.cross_entropy(logits.float().flatten(0, 1), after.flatten(), ignore_index=-100)


def loss_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The loss of a model that returns logits."""
    return lambda tokens: next_token_loss(model(tokens), tokens)


def of_nn(shape: Model, impl: str) -> Language:
    """`retrograd.nn`."""
    from retrograd.nn import LanguageModel

    model = LanguageModel(shape.config, device="cuda", dtype=torch.bfloat16)
    loss = loss_of(model)
    return Language(model, torch.compile(loss, fullgraph=True) if impl == COMPILED else loss, "retrograd")


def initial(shape: Model) -> dict[str, Tensor]:
    """The parameters that `of_nn` begins with; the implementations below have the same names."""
    torch.manual_seed(0)
    return of_nn(shape, NN).model.state_dict()


def of_mamba_ssm(shape: Model, impl: str) -> Language:
    """mamba_ssm's own model."""
    from mamba_ssm.models.config_mamba import MambaConfig
    from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel

    given = shape.config.to_dict()
    attention = {key: value for key, value in given["attn_cfg"].items() if key not in ("qk_norm", "window")}
    config = MambaConfig(**given | {"attn_cfg": attention})
    model = MambaLMHeadModel(config, device="cuda", dtype=torch.bfloat16)
    model.load_state_dict(initial(shape))

    def loss(tokens: Tensor) -> Tensor:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
            return next_token_loss(model(tokens).logits, tokens)

    return Language(model, torch.compile(loss) if impl == MAMBA_SSM_COMPILED else loss, "mamba_ssm")


def of_torch(shape: Model, impl: str) -> Language:
    """A transformer of PyTorch's own functions, compiled."""
    from plain_transformer import Transformer

    model = Transformer(shape.config, shape.time, device="cuda", dtype=torch.bfloat16)
    model.load_state_dict(initial(shape))
    loss = loss_of(model)
    return Language(model, torch.compile(loss, fullgraph=True), "torch")


def of_transformers(shape: Model, impl: str) -> Language:
    """transformers' Mamba, with its own kernels, mamba_ssm's or retrograd's."""
    if impl == CUDA:
        import causal_conv1d  # noqa: F401  # here a missing peer is an error, in transformers a warning
        import mamba_ssm.ops.selective_scan_interface  # noqa: F401
    if impl in (INSTALLED, PATCHED):
        import retrograd.compat

        retrograd.compat.install()
    from transformers import MambaConfig, MambaForCausalLM
    from transformers.models.mamba import modeling_mamba

    config = MambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.config.d_model,
        num_hidden_layers=shape.config.n_layer,
        state_size=16,
        use_cache=False,
    )
    with torch.device("cuda"):
        model = MambaForCausalLM(config).to(torch.bfloat16).train()
    if impl == PATCHED:
        import retrograd.compat.transformers

        retrograd.compat.transformers.patch(model)
    if impl == SLOW:
        model.gradient_checkpointing_enable()  # else (B, T, D, N) of every layer is saved: more than the GPU has
    scan = inspect.getclosurevars(modeling_mamba.mamba_selective_scan).nonlocals["implementation"]
    return Language(model, lambda tokens: model(input_ids=tokens, labels=tokens).loss, scan.__module__)


MAKERS: dict[str, Callable[[Model, str], Language]] = {
    **dict.fromkeys((NN, COMPILED), of_nn),
    **dict.fromkeys((MAMBA_SSM, MAMBA_SSM_COMPILED), of_mamba_ssm),
    **dict.fromkeys((CUDA, INSTALLED, PATCHED, SLOW), of_transformers),
    TORCH: of_torch,
}
