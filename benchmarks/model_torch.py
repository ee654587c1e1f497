"""The training steps of models.py in PyTorch."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from model_shapes import (
    COMPILED,
    CUDA,
    CUDA_COMPILED,
    FLA,
    INSTALLED,
    MAMBA_SSM,
    MAMBA_SSM_COMPILED,
    NN,
    PATCHED,
    PATCHED_COMPILED,
    SLOW,
    SLOW_COMPILED,
    TORCH,
    VOCABULARY,
    Foreign,
    Model,
)
from model_step import Training
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from retrograd.models.layers import Mamba2Config

KERNELS = 60  # lines of a profile
OURS = (INSTALLED, PATCHED, PATCHED_COMPILED)


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
    """A model of transformers, with its own kernels, mamba_ssm's, fla's or retrograd's."""
    if impl in (CUDA, CUDA_COMPILED):
        import causal_conv1d  # noqa: F401  # here a missing peer is an error, in transformers a warning
        import mamba_ssm.ops.selective_scan_interface  # noqa: F401
    if impl == FLA:
        import fla.ops.kda  # noqa: F401

        import retrograd.compat

        retrograd.compat.install()  # the convolution, which transformers has of another package
    if impl in OURS:
        import retrograd.compat

        retrograd.compat.install(force=True)  # also where --peers has the packages
    if isinstance(shape.config, Foreign):
        model, kernels = foreign(shape.config, impl)
    else:
        model, kernels = (llama if shape.config.attn_layer_idx else mamba)(shape, impl)
    if impl in (PATCHED, PATCHED_COMPILED):
        import retrograd.compat.transformers

        retrograd.compat.transformers.patch(model)
    if impl == SLOW and kernels.startswith("transformers"):
        model.gradient_checkpointing_enable()  # else (B, T, D, N) of every layer is saved: more than the GPU has

    def loss(tokens: Tensor) -> Tensor:
        found: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return found

    if impl in (SLOW_COMPILED, PATCHED_COMPILED, CUDA_COMPILED):
        loss = torch.compile(loss, fullgraph=impl == PATCHED_COMPILED)
    return Language(model, loss, kernels)


def mamba(shape: Model, impl: str) -> tuple[Any, str]:
    """transformers' Mamba or Mamba-2, and the module of its scan."""
    import transformers
    from transformers.models.mamba import modeling_mamba
    from transformers.models.mamba2 import modeling_mamba2

    size, layers, second = shape.config.d_model, shape.config.n_layer, shape.config.ssm_cfg
    sizes = {"vocab_size": VOCABULARY, "hidden_size": size, "num_hidden_layers": layers, "use_cache": False}
    if isinstance(second, Mamba2Config):
        heads = {"num_heads": second.heads(size), "head_dim": second.headdim, "n_groups": second.ngroups}
        config: Any = transformers.Mamba2Config(**sizes, **heads, state_size=second.d_state)
        kind, scan = transformers.Mamba2ForCausalLM, modeling_mamba2.mamba2_chunk_scan
    else:
        config = transformers.MambaConfig(**sizes, state_size=16)
        kind, scan = transformers.MambaForCausalLM, modeling_mamba.mamba_selective_scan
    with torch.device("cuda"):
        model = kind(config).to(torch.bfloat16).train()
    return model, inspect.getclosurevars(scan).nonlocals["implementation"].__module__


def llama(shape: Model, impl: str) -> tuple[Any, str]:
    """transformers' Llama, on PyTorch's attention or retrograd's."""
    import transformers

    from retrograd.compat.transformers import register

    attention = shape.config.attn_cfg
    assert attention is not None
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.config.d_model,
        intermediate_size=shape.config.d_intermediate,
        num_hidden_layers=shape.config.n_layer,
        num_attention_heads=attention.num_heads,
        num_key_value_heads=attention.num_heads_kv,
        tie_word_embeddings=True,
        max_position_embeddings=shape.time,
        use_cache=False,
    )
    chosen = register() if impl in OURS else "sdpa"
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=chosen)
    return model.to(torch.bfloat16).train(), "retrograd" if impl in OURS else "torch"


def foreign(config: Foreign, impl: str) -> tuple[Any, str]:
    """A model of transformers by its name, and the module of its attention, or of its scan where it has one."""
    import transformers

    from retrograd.compat import report
    from retrograd.compat.transformers import register

    chosen = register() if impl in OURS else config.attention
    settings = getattr(transformers, f"{config.kind}Config")(**config.options)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation=chosen)
    print(report(model), file=sys.stderr, flush=True)
    return model.to(torch.bfloat16).train(), "retrograd" if impl in OURS else "fla" if impl == FLA else chosen


MAKERS: dict[str, Callable[[Model, str], Language]] = {
    **dict.fromkeys((NN, COMPILED), of_nn),
    **dict.fromkeys((MAMBA_SSM, MAMBA_SSM_COMPILED), of_mamba_ssm),
    **dict.fromkeys((CUDA, CUDA_COMPILED, FLA, *OURS, SLOW, SLOW_COMPILED), of_transformers),
    TORCH: of_torch,
}
