"""A language model of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from retrograd.core.errors import bad_shape, bad_type, bad_value
from retrograd.core.torch.context import Context
from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, GatedDeltaNetConfig, Mamba1Config, Mamba2Config
from retrograd.models.shapes import EMBEDDING_STD

from .attention import Attention
from .block import Block
from .checks import boundaries, check_context, check_state, check_tokens, check_vocabulary, is_readable
from .gated_delta_net import GatedDeltaNet
from .linear import Linear
from .mamba import Mamba
from .mamba2 import Mamba2
from .mixer import Mixer, Start
from .mlp import GatedMLP
from .norm import RMSNorm

State = Sequence[Any]  # one for each layer
MIXERS: Mapping[type, Callable[..., Mixer]] = {
    Mamba1Config: Mamba,
    Mamba2Config: Mamba2,
    GatedDeltaNetConfig: GatedDeltaNet,
    AttentionConfig: Attention,
}


class Backbone(nn.Module):
    """Tokens to normalised features: embedding, blocks, norm.

    Args:
        config: sizes and layers.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self,
        config: MambaConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(config, MambaConfig):
            raise bad_type("LanguageModel", "config", config, "a MambaConfig")
        self.config = config
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embedding = nn.Embedding(config.padded_vocab_size, config.d_model, **place)
        self.layers = nn.ModuleList(_block(config, number, **place) for number in range(config.n_layer))
        self.norm_f = RMSNorm(config.d_model, **place)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
        for block in self.blocks:
            # Keeps the sum over the layers from growing with their number.
            block.divide_output(math.sqrt(self.config.additions))

    @property
    def blocks(self) -> list[Block]:
        """The layers, including any wrapped by `torch.compile` or for activation checkpointing."""
        return cast(list[Block], list(self.layers))

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        state: State | Start | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        context: Context | None = None,
    ) -> tuple[Float[Tensor, "B T d_model"], State | None]:
        """Features of all steps, and the state after the last, None if `state` is None."""
        check_context("LanguageModel", context, state, cu_seqlens)
        check_tokens("LanguageModel", tokens, ("batch", "time"))
        if cu_seqlens is not None:
            cu_seqlens = boundaries("LanguageModel", cu_seqlens, tokens, "tokens")
        states: State = [state] * len(self.layers) if state is None or isinstance(state, Start) else state
        check_state("LanguageModel", states, len(self.layers))
        x, stream = self._embed(tokens), None
        after = []
        for layer, before in zip(self.blocks, states, strict=True):
            x, stream, own = layer(x, stream, before, cu_seqlens=cu_seqlens, context=context)
            after.append(own)
        assert stream is not None
        features, _ = self.norm_f(x, stream)
        return features, after if state is not None else None

    def step(
        self, tokens: Int[Tensor, " B"], state: State, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "B d_model"], State]:
        """Features of one step, and the state after it."""
        check_tokens("LanguageModel", tokens, ("batch",))
        check_state("LanguageModel", state, len(self.layers))
        x, stream = self._embed(tokens), None
        after = []
        for layer, before in zip(self.blocks, state, strict=True):
            x, stream, own = layer.step(x, stream, before, in_place=in_place)
            after.append(own)
        assert stream is not None
        features, _ = self.norm_f(x, stream)
        return features, after

    def _embed(self, tokens: Tensor) -> Tensor:
        try:
            rows: Tensor = self.embedding(tokens)
        except IndexError:
            check_vocabulary("LanguageModel", tokens, self.config)
            raise
        return rows


def _block(config: MambaConfig, number: int, **place: Any) -> Block:
    """A layer of the model; `place` is device and dtype."""
    d, mixer = config.d_model, config.layer(number)
    has_mlp = config.d_intermediate > 0
    return Block(
        RMSNorm(d, **place),
        MIXERS[type(mixer)](d, mixer, **place),
        RMSNorm(d, **place) if has_mlp else None,
        GatedMLP(d, config.mlp_channels, **place) if has_mlp else None,
        residual_in_fp32=config.residual_in_fp32,
    )


def is_same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same memory or have equal values."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return (a.data_ptr() == b.data_ptr() and a.stride() == b.stride()) or torch.equal(a, b)


class LanguageModel(nn.Module):
    """Tokens to logits of the next token.

    Args:
        config: sizes and layers: Mamba, Mamba-2, the gated delta rule, attention, or a mixture.
        exact: whether the logits of a step of generation have the bits that they have in `forward` on the whole
            sequence, alone and in any batch. Products are then those of `retrograd.linear`, and a step of Mamba-2
            or of the gated delta rule computes again up to 64 steps. By default each layer is exact where that costs
            little: in bfloat16 and float16 on Hopper GPUs, but for steps of the gated delta rule, and of Mamba-2 unless
            it has heads of a multiple of 64 channels, 64, 128 or 256 states and a norm.
            Elsewhere it costs more: on a CPU products take several times as long as PyTorch's.
        device: of the parameters.
        dtype: of the parameters; A_log, D and dt_bias are created in float32.

    Source: Gu and Dao, Mamba (2023), section 3.4 and appendix E.2; Dao and Gu, Transformers are SSMs (2024), sections 7
    and 9.2.3.

    Example:
        >>> import torch
        >>> from retrograd.nn import AttentionConfig, LanguageModel, Mamba2Config, MambaConfig
        >>> config = MambaConfig(
        ...     d_model=64,
        ...     n_layer=4,
        ...     vocab_size=256,
        ...     ssm_cfg=Mamba2Config(d_state=16, headdim=32),
        ...     attn_layer_idx=(2,),
        ...     attn_cfg=AttentionConfig(num_heads=4, rotary_emb_dim=16),
        ... )
        >>> model = LanguageModel(config)
        >>> tokens = torch.randint(256, (2, 100))
        >>> logits = model(tokens)
        >>> logits.shape
        torch.Size([2, 100, 256])
        >>> first, state = model(tokens[:, :60], model.initial_state(2, capacity=100))
        >>> step, state = model.step(tokens[:, 60], state)
        >>> torch.allclose(step, logits[:, 60], atol=1e-4)
        True
    """

    def __init__(
        self,
        config: MambaConfig,
        *,
        exact: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config, device=device, dtype=dtype)
        self.lm_head = Linear(config.d_model, config.padded_vocab_size, bias=False, device=device, dtype=dtype)
        if config.tie_embeddings:
            self.lm_head.weight = self.backbone.embedding.weight
        for module in self.modules():
            if isinstance(module, (Linear, Mixer)):
                module.exact = exact

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Called by `to`, `half`, `to_empty` and others. They may replace parameters, so a tied head is tied again."""
        tied = self._is_tied()
        super()._apply(fn, recurse)
        if tied:
            self.lm_head.weight = self.backbone.embedding.weight
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, metadata: Any, *arguments: Any) -> None:
        """Called by `load_state_dict` for each module. A tied head and the embedding get the same tensor."""
        if self._is_tied():
            weight, errors = self.lm_head.weight, arguments[-1]
            names = [prefix + name for name, p in self.named_parameters(remove_duplicate=False) if p is weight]
            tensors = [state_dict[name] for name in names if isinstance(state_dict.get(name), Tensor)]
            if not all(is_same(tensors[0], other) for other in tensors[1:]):
                errors.append(f"{' and '.join(names)} differ, but they are one parameter of this model")
            elif tensors:
                shared = tensors[0]
                if metadata.get("assign_to_params_buffers") and not isinstance(shared, nn.Parameter):
                    shared = nn.Parameter(shared, requires_grad=weight.requires_grad)
                state_dict |= dict.fromkeys(names, shared)
        super()._load_from_state_dict(state_dict, prefix, metadata, *arguments)

    def _is_tied(self) -> bool:
        return getattr(self.lm_head, "weight", None) is self.backbone.embedding.weight

    def initial_state(self, batch: int, dtype: torch.dtype | None = None, *, capacity: int | None = None) -> State:
        """The state before the first token, for `batch` sequences.

        Args:
            batch: sequences.
            dtype: of its activations, by default the weights' dtype.
            capacity: the most tokens of a sequence; needed if a layer is attention.

        Raises:
            ValueError: for attention without a capacity of at least 1.
        """
        return [block.mixer.initial_state(batch, dtype, capacity=capacity) for block in self.backbone.blocks]

    def grown(self, state: State, capacity: int) -> State:
        """The same state for sequences of at most `capacity` tokens, which may not be fewer than before."""
        return [block.mixer.grown(own, capacity) for block, own in zip(self.backbone.blocks, state, strict=True)]

    @overload
    def forward(
        self,
        tokens: Tensor,
        state: None = None,
        *,
        cu_seqlens: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor: ...

    @overload
    def forward(self, tokens: Tensor, state: State, *, cu_seqlens: Tensor | None = None) -> tuple[Tensor, State]: ...

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        state: State | None = None,
        *,
        cu_seqlens: Int[Tensor, " S+1"] | None = None,
        context: Context | None = None,
    ) -> Tensor | tuple[Tensor, State | None]:
        """Logits (B, T, padded vocabulary); with a state, (logits, the state after the last token).

        Args:
            tokens: (B, T), integers from 0 to below the padded vocabulary.
            state: from `initial_state` or an earlier call; differentiable.
            cu_seqlens: (S + 1,) int32 or int64, for B = 1: the start of each packed sequence, and the end of the last.
            context: where steps are divided over processes, a `retrograd.distributed.ContextParallel`: tokens and
                logits are of this process's steps. Its layout has the boundaries of packed sequences.

        Raises:
            ValueError, TypeError: naming the argument, what was expected and what was passed, as for state or
                cu_seqlens beside a context. Tokens outside the vocabulary are reported on a CPU only. On a GPU the
                check would synchronise; there PyTorch's embedding raises a device-side assertion, after which the
                process cannot use the GPU.

        Example:
            >>> import torch, torch.distributed as dist
            >>> from retrograd.distributed import ContextParallel, Layout
            >>> from retrograd.nn import LanguageModel, MambaConfig
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            >>> context = ContextParallel(Layout.even(100, world=1, rank=0))
            >>> model = LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
            >>> logits = model(context.shard(torch.randint(256, (2, 100))), context=context)
            >>> logits.shape
            torch.Size([2, 100, 256])
            >>> dist.destroy_process_group()
        """
        features, after = self.backbone(tokens, state, cu_seqlens=cu_seqlens, context=context)
        logits = self.lm_head(features)
        return logits if state is None else (logits, after)

    def prefill(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        capacity: int | None = None,
        cu_seqlens: Int[Tensor, " S+1"] | None = None,
    ) -> tuple[Float[Tensor, "B vocabulary"], State]:
        """The logits (B, padded vocabulary) after the last of the first tokens, and the state that `step` goes on from.

        They are those of `forward` from `initial_state`, in less time: the kernels of training run as without a state,
        and the head computes only what is returned.

        Args:
            tokens: (B, T), at least one token, from 0 to below the padded vocabulary.
            capacity: the most tokens of a sequence, these included; needed if a layer is attention.
            cu_seqlens: as in `forward`; B is then S, and each sequence has at least one token.

        Raises:
            ValueError, TypeError: as in `forward` and `initial_state`, and for no token. An empty packed sequence is
                reported on a CPU only; on a GPU its logits are NaN.

        Example:
            >>> import torch
            >>> from retrograd.nn import LanguageModel, MambaConfig
            >>> model = LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
            >>> logits, state = model.prefill(torch.randint(256, (2, 100)))
            >>> logits, state = model.step(logits.argmax(-1), state)
            >>> logits.shape
            torch.Size([2, 256])
        """
        check_tokens("LanguageModel", tokens, ("batch", "time"))
        if tokens.shape[1] < 1:
            raise bad_shape("LanguageModel", "tokens", tuple(tokens.shape), "(batch, at least one token)")
        if cu_seqlens is None:
            features, state = self.backbone(tokens, Start(len(tokens), capacity))
            return self.lm_head(features[:, -1]), state
        cu_seqlens = boundaries("LanguageModel", cu_seqlens, tokens, "tokens")
        empty = cu_seqlens.diff() < 1
        if is_readable(empty) and bool(empty.any()):
            raise bad_value("LanguageModel", "cu_seqlens", cu_seqlens.tolist(), "at least one token in each sequence")
        features, state = self.backbone(tokens, Start(len(empty), capacity), cu_seqlens=cu_seqlens)
        return self.lm_head(features[0, cu_seqlens[1:] - 1].masked_fill(empty[:, None], math.nan)), state

    def step(
        self, tokens: Int[Tensor, " B"], state: State, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "B vocabulary"], State]:
        """One step of generation: the logits (B, padded vocabulary) after one more token, and the state after it.

        Args:
            tokens: (B,), integers from 0 to below the padded vocabulary.
            state: from `initial_state` or an earlier call.
            in_place: whether tensors of `state` may be overwritten and returned, as those of a long cache of attention
                are, which otherwise is copied. `state` must not be used again, and gets no gradient.
        """
        features, after = self.backbone.step(tokens, state, in_place=in_place)
        return self.lm_head(features), after
