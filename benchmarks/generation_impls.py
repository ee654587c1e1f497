"""The implementations of generate.py: each generates tokens from random weights, and calls back at every token."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from generation_shapes import EXACT, GRAPHS, MAMBA, MAMBA2, NN, TRANSFORMER, TRANSFORMERS, TRANSFORMERS_KERNELS, Setting
from torch import Tensor, nn

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, Mamba1Config, Mamba2Config
from retrograd.nn import LanguageModel, generate

DTYPE = torch.bfloat16
EPS = 1e-5  # of all norms

Seen = Callable[[int], None]  # called with the number of a token that was just asked for, from 0


class Generation(NamedTuple):
    """An implementation that is ready.

    Attributes:
        impl: its name in the row.
        run: generate so many tokens after a prompt, greedily.
        tokens: the same as an iterator of tokens (B,), if there is one.
        kernels: where the kernels along time are from.
    """

    impl: str
    run: Callable[[int, Seen], None]
    tokens: Callable[[int], Any] | None
    kernels: str


def device() -> str:
    """Where models are."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def language_model(config: MambaConfig, exact: bool = False) -> LanguageModel:
    """The model; of one config the weights are the same each time."""
    torch.manual_seed(0)
    return LanguageModel(config, exact=exact, device=device(), dtype=DTYPE)


def random_tokens(config: MambaConfig, batch: int, time: int) -> Tensor:
    """Tokens (batch, time), the same each time."""
    torch.manual_seed(1)
    return torch.randint(config.vocab_size, (batch, time), device=device())


def of_nn(setting: Setting, name: str, impl: str, batch: int) -> Generation:
    """`nn.generate`."""
    config = setting.configs[name]
    model, prompt = language_model(config, impl == EXACT), random_tokens(config, batch, setting.prompt_of(name))

    def tokens(count: int) -> Any:
        return generate(model, prompt, count, temperature=0.0, seed=0)

    return Generation(impl, called_back(tokens), tokens, "retrograd")


def called_back(tokens: Callable[[int], Any]) -> Callable[[int, Seen], None]:
    """The run of an iterator, whose tokens stay on the device."""

    def run(count: int, seen: Seen) -> None:
        for number, _ in enumerate(tokens(count)):
            seen(number)

    return run


def of_torch(setting: Setting, name: str, impl: str, batch: int) -> Generation:
    """PyTorch's own functions, a step in a CUDA graph."""
    from plain_generation import PlainModel

    config = setting.configs[name]
    model = PlainModel(config, language_model(config).state_dict(), batch, setting.slots)
    step = model.captured()

    def tokens(count: int) -> Any:
        model.begin(setting.prompt_of(name))
        for _ in range(count):
            step()
            yield model.tokens.clone()  # the next step writes there

    return Generation(impl, called_back(tokens), tokens, "torch")


def of_transformers(setting: Setting, name: str, impl: str, batch: int) -> Generation:
    """transformers' models of the same shapes, by its own `generate`."""
    from transformers import GenerationConfig, LogitsProcessorList

    config = setting.configs[name]
    model, kernels = TRANSFORMERS_MODELS[name](config)
    prompt = random_tokens(config, batch, setting.prompt_of(name))

    def run(count: int, seen: Seen) -> None:
        number = iter(range(count))

        def at_token(tokens: Tensor, logits: Tensor) -> Tensor:
            seen(next(number))
            return logits

        # Of one size for every count, so that nothing is compiled again.
        cache = {"cache_implementation": "static", "max_cache_len": setting.slots} if name == TRANSFORMER else {}
        options = GenerationConfig(
            max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=True, **cache
        )
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=options,
            logits_processor=LogitsProcessorList([at_token]),
        )

    fast = kernels.startswith("mamba_ssm")
    return Generation(TRANSFORMERS_KERNELS if fast else TRANSFORMERS, run, None, kernels)


def transformers_mamba(config: MambaConfig) -> tuple[nn.Module, str]:
    """MambaForCausalLM, and the module of its kernel of a step."""
    import transformers
    from transformers.models.mamba import modeling_mamba

    own = config.ssm_cfg
    assert isinstance(own, Mamba1Config)
    made = transformers.MambaConfig(
        **common(config),
        state_size=own.d_state,
        expand=own.expand,
        conv_kernel=own.d_conv,
        layer_norm_epsilon=EPS,
    )
    return placed(transformers.MambaForCausalLM, made), found(modeling_mamba.mamba_selective_state_update)


def transformers_mamba2(config: MambaConfig) -> tuple[nn.Module, str]:
    """Mamba2ForCausalLM, and the module of its kernel of a step."""
    import transformers
    from transformers.models.mamba2 import modeling_mamba2

    own = config.ssm_cfg
    assert isinstance(own, Mamba2Config)
    made = transformers.Mamba2Config(
        **common(config),
        num_heads=own.heads(config.d_model),
        head_dim=own.headdim,
        state_size=own.d_state,
        expand=own.expand,
        conv_kernel=own.d_conv,
        n_groups=own.ngroups,
        layer_norm_epsilon=EPS,
    )
    return placed(transformers.Mamba2ForCausalLM, made), found(modeling_mamba2.mamba2_selective_state_update)


def transformers_llama(config: MambaConfig) -> tuple[nn.Module, str]:
    """LlamaForCausalLM; all channels of a head are rotated, as in the transformer here."""
    import transformers

    own = config.attn_cfg
    assert isinstance(own, AttentionConfig)
    made = transformers.LlamaConfig(
        **common(config),
        intermediate_size=config.mlp_channels,
        num_attention_heads=own.num_heads,
        num_key_value_heads=own.groups,
        rms_norm_eps=EPS,
        max_position_embeddings=8192,
    )
    return placed(transformers.LlamaForCausalLM, made), "torch"


def common(config: MambaConfig) -> dict[str, Any]:
    """What the configs of transformers share."""
    return {
        "vocab_size": config.padded_vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layer,
        "tie_word_embeddings": config.tie_embeddings,
        "eos_token_id": None,
        "pad_token_id": 0,
    }


def placed(model: Callable[[Any], Any], config: Any) -> Any:
    """The model of a config, made on the device."""
    torch.manual_seed(0)
    with torch.device(device()):
        return model(config).to(DTYPE).eval()


def found(function: Callable[..., Any]) -> str:
    """The module from which transformers takes a function: a peer's, or its own."""
    implementation = inspect.getclosurevars(function).nonlocals["implementation"]
    return str(implementation.__module__)


TRANSFORMERS_MODELS: dict[str, Callable[[MambaConfig], tuple[nn.Module, str]]] = {
    MAMBA: transformers_mamba,
    MAMBA2: transformers_mamba2,
    TRANSFORMER: transformers_llama,
}
MAKERS: dict[str, Callable[[Setting, str, str, int], Generation]] = {
    NN: of_nn,
    EXACT: of_nn,
    GRAPHS: of_torch,
    TRANSFORMERS: of_transformers,
}
