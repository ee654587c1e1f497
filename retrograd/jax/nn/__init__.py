"""The language models of `retrograd.nn` as pure functions of their parameters: Mamba-1, Mamba-2, the gated delta
rule, attention, hybrids.

The parameters are a flat dict with the names of PyTorch's state_dict; those of a block or a layer alone have them
without prefix. A configuration is a static argument of `jax.jit`, a state is a pytree.

Example:
    A step of training, in mixed precision:

    >>> import jax, jax.numpy as jnp
    >>> from functools import partial
    >>> from retrograd.jax import nn
    >>> config = nn.MambaConfig(d_model=32, n_layer=2, vocab_size=256)
    >>> params = nn.init(jax.random.key(0), config)
    >>> def loss(params, config, tokens):
    ...     logits = nn.language_model(params, config, tokens[:, :-1], dtype=jnp.bfloat16).astype(jnp.float32)
    ...     picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    ...     return -picked.mean()
    >>> @partial(jax.jit, static_argnums=1)
    ... def train(params, config, tokens):
    ...     value, gradients = jax.value_and_grad(loss)(params, config, tokens)
    ...     return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
    >>> tokens = jax.random.randint(jax.random.key(1), (2, 65), 0, 256)
    >>> before, params = train(params, config, tokens)
    >>> after, params = train(params, config, tokens)
    >>> bool(after < before)
    True
"""

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, GatedDeltaNetConfig, Mamba1Config, Mamba2Config

from .attention import AttentionState, attention_layer, attention_layer_state, attention_layer_step
from .convert import from_torch, to_torch
from .gated_delta_net import (
    GatedDeltaNetState,
    gated_delta_net,
    gated_delta_net_state,
    gated_delta_net_step,
)
from .generate import generate, score
from .initialisation import init
from .layers import gated_mlp
from .mamba import MambaState, mamba, mamba_state, mamba_step
from .mamba2 import Mamba2State, mamba2, mamba2_state, mamba2_step
from .model import block, block_step, initial_state, language_model, step

__all__ = [
    "AttentionConfig",
    "AttentionState",
    "GatedDeltaNetConfig",
    "GatedDeltaNetState",
    "Mamba1Config",
    "Mamba2Config",
    "Mamba2State",
    "MambaConfig",
    "MambaState",
    "attention_layer",
    "attention_layer_state",
    "attention_layer_step",
    "block",
    "block_step",
    "from_torch",
    "gated_delta_net",
    "gated_delta_net_state",
    "gated_delta_net_step",
    "gated_mlp",
    "generate",
    "init",
    "initial_state",
    "language_model",
    "mamba",
    "mamba2",
    "mamba2_state",
    "mamba2_step",
    "mamba_state",
    "mamba_step",
    "score",
    "step",
    "to_torch",
]
