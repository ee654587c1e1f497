"""A layer of causal attention, with a gated MLP beside it if asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

import retrograd
from retrograd.core.errors import bad_dtype, bad_shape, bad_value
from retrograd.core.torch.context import Context
from retrograd.models.generation import check_size
from retrograd.models.layers import AttentionConfig

from .checks import boundaries, check_context, check_features, check_layer, check_layer_state, is_readable
from .initial import zero_biases
from .linear import Linear
from .mixer import Mixer, Start
from .norm import RMSNorm
from .rotary import kept_tables, rotate
from .rows import Slots, owned, placed, slots, written


class AttentionState(NamedTuple):
    """The state of an `Attention` layer between steps: the keys and values of all earlier ones.

    Sequences of a batch may be at different steps. A call copies k and v, but for a step in place.

    Attributes:
        k, v: (B, capacity, groups, head size), in the activations' dtype; rotated and normalised keys.
        steps: (B,) int32, how many steps were before; later slots of a row are not read.
        conv: (B, channels of q, k and v, d_conv - 1), the last inputs of the convolution, oldest first; None without.
    """

    k: Tensor
    v: Tensor
    steps: Tensor
    conv: Tensor | None


class Attention(Mixer):
    """A layer of causal attention.

    ::

        qkv, x, gate = in_proj(u)                                     x, gate: a gated MLP beside, with mlp_dim
        q, k, v = causal_conv1d(qkv)                                  with d_conv
        q, k  = rotate(rms_norm(q)), rotate(rms_norm(k))              with rotary_emb_dim, with qk_norm
        out   = out_proj([attention(q, k, v), x silu(gate)])

    Args:
        d_model: channels of input and output.
        config: sizes.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError, TypeError: unless d_model is an integer of at least 1 and config an `AttentionConfig` that goes
            with it.

    Source: Vaswani et al., Attention Is All You Need (2017), section 3.2; as in Dao and Gu, Transformers are SSMs
    (2024), section 9.2.3. Names, shapes and initialisation are those of state-spaces/mamba.

    Example:
        >>> import torch
        >>> from retrograd.nn import Attention, AttentionConfig
        >>> layer = Attention(64, AttentionConfig(num_heads=4, num_heads_kv=2, rotary_emb_dim=16))
        >>> u = torch.randn(2, 100, 64)
        >>> y, _ = layer(u)
        >>> first, state = layer(u[:, :60], layer.initial_state(2, capacity=100))
        >>> then, state = layer(u[:, 60:], state)
        >>> torch.allclose(y, torch.cat((first, then), dim=1), atol=1e-5)
        True
    """

    def __init__(
        self,
        d_model: int,
        config: AttentionConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_layer("Attention", d_model, config, AttentionConfig)
        self.config = config
        self.size, qkv, mlp = config.size(d_model), config.qkv_channels(d_model), config.mlp_channels
        self.parts = (qkv, mlp // 2, mlp // 2)
        self.in_proj = Linear(d_model, qkv + mlp, bias=config.qkv_proj_bias, device=device, dtype=dtype)
        # It only holds weight and bias under the checkpoints' names; `causal_conv1d` does the computation.
        self.conv1d = (
            nn.Conv1d(qkv, qkv, config.d_conv, groups=qkv, device=device, dtype=dtype) if config.d_conv else None
        )
        self.q_norm = RMSNorm(self.size, device=device, dtype=dtype) if config.qk_norm else None
        self.k_norm = RMSNorm(self.size, device=device, dtype=dtype) if config.qk_norm else None
        joined = config.num_heads * self.size + mlp // 2
        self.out_proj = Linear(joined, d_model, bias=config.out_proj_bias, device=device, dtype=dtype)
        zero_biases(self.in_proj, self.out_proj)

    @torch.no_grad()
    def divide_output(self, by: float) -> None:
        """Divide the weight of the last projection."""
        self.out_proj.weight /= by

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, *, capacity: int | None = None
    ) -> AttentionState:
        """A state without steps for `batch` sequences.

        Args:
            batch: sequences.
            dtype: of k, v and conv, by default the weights' dtype.
            capacity: the most steps of a sequence.

        Raises:
            ValueError: unless capacity is an integer of at least 1.
        """
        capacity = _capacity(capacity)
        weight, config = self.in_proj.weight, self.config
        place: dict[str, Any] = {"device": weight.device, "dtype": dtype or weight.dtype}
        size = (batch, capacity, config.groups, self.size)
        steps = torch.zeros(batch, device=weight.device, dtype=torch.int32)
        conv = torch.zeros(batch, self.parts[0], config.d_conv - 1, **place) if config.d_conv else None
        return AttentionState(torch.zeros(size, **place), torch.zeros(size, **place), steps, conv)

    def grown(self, state: AttentionState, capacity: int) -> AttentionState:
        """The same state with room for sequences of `capacity` steps; with less room than before, an error."""
        more = capacity - state.k.shape[1]
        if more < 0:
            raise bad_value("Attention", "capacity", capacity, f"at least that of state, {state.k.shape[1]}")
        k, v = (F.pad(rows, (0, 0, 0, 0, 0, more)) for rows in (state.k, state.v))
        return state._replace(k=k, v=v)

    def forward(
        self,
        u: Float[Tensor, "B T d_model"],
        state: AttentionState | None = None,
        *,
        cu_seqlens: Int[Tensor, " S+1"] | None = None,
        context: Context | None = None,
    ) -> tuple[Float[Tensor, "B T d_model"], AttentionState | None]:
        """All steps of a sequence.

        Args:
            u: (B, T, d_model), in the weights' dtype unless products are autocast.
            state: the state before the first step, differentiable; its batch is S if sequences are packed.
            cu_seqlens: (S + 1,) int32 or int64, for B = 1: the start of each packed sequence, and the end of the last.
            context: where steps are divided over processes, as in `LanguageModel.forward`.

        Returns:
            (out, state): out (B, T, d_model), and the state after the last step, or None if `state` is None.

        Raises:
            ValueError, TypeError: naming the argument, what was expected and what was passed. Steps beyond a state's
                capacity are reported on a CPU only. On a GPU, where the check would synchronise, and while the call is
                traced, the results of such a sequence are NaN, in this call and all later ones.
        """
        check_context("Attention", context, state, cu_seqlens)
        check_features("Attention", u, ("batch", "time"), self.in_proj.in_features, self.in_proj.weight.dtype)
        if cu_seqlens is not None:
            cu_seqlens = boundaries("Attention", cu_seqlens, u)
        place = None if state is None else self._place(u, state, cu_seqlens)
        qkv, x, gate = self.in_proj(u).split(self.parts, dim=-1)
        before = None if state is None else state.conv
        qkv, conv = self._convolve(qkv, before, cu_seqlens, keep=state is not None, context=context)
        if state is None or place is None:
            y, after = self._attend(qkv, _positions(u, cu_seqlens, context), cu_seqlens, context)[0], None
        else:
            y, k, v = self._continue(qkv, state, place)
            after = AttentionState(k, v, place.steps, conv)
        return self._output(y, x, gate), after

    def begin(
        self, u: Float[Tensor, "B T d_model"], start: Start, *, cu_seqlens: Int[Tensor, " S+1"] | None = None
    ) -> tuple[Float[Tensor, "B T d_model"], AttentionState]:
        """All steps of sequences from their first, and the state after them."""
        check_features("Attention", u, ("batch", "time"), self.in_proj.in_features, self.in_proj.weight.dtype)
        sequences, capacity = start.sequences, _capacity(start.capacity)
        if cu_seqlens is not None:
            cu_seqlens = boundaries("Attention", cu_seqlens, u)
        elif u.shape[1] > capacity:
            raise _full(capacity, u.shape[1])
        qkv, x, gate = self.in_proj(u).split(self.parts, dim=-1)
        qkv, conv = self._convolve(qkv, None, cu_seqlens, keep=True)
        y, k, v = self._attend(qkv, _positions(u, cu_seqlens), cu_seqlens)
        if cu_seqlens is None:
            after = u.shape[1]
            k, v = (F.pad(rows, (0, 0, 0, 0, 0, capacity - after)) for rows in (k, v))
            steps = torch.full((sequences,), after, device=u.device, dtype=torch.int32)
        else:
            place = _slots(cu_seqlens.new_zeros(sequences), capacity, cu_seqlens, u.shape[1])
            k, v = (placed(rows[0], place.slot, sequences, capacity) for rows in (k, v))
            y, steps = y.masked_fill(place.full[:, None, None], torch.nan), place.steps
        return self._output(y, x, gate), AttentionState(k, v, steps, conv)

    def step(
        self, u: Float[Tensor, "B d_model"], state: AttentionState, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "B d_model"], AttentionState]:
        """One step of generation: (out, the state after it); in place, `state` gets its key, value and input."""
        check_features("Attention", u, ("batch",), self.in_proj.in_features, self.in_proj.weight.dtype)
        self._check_state(state, len(u))
        plain = type(state.k) is Tensor and not torch.compiler.is_compiling()
        if not in_place or torch.is_grad_enabled() or not plain:
            y, after = self(u[:, None], state)
            return y[:, 0], after
        qkv, x, gate = self.in_proj(u).split(self.parts, dim=-1)
        if qkv.dtype != state.k.dtype:
            state = state._replace(k=state.k.to(qkv.dtype), v=state.v.to(qkv.dtype))
        conv = state.conv
        if self.conv1d is not None and conv is not None:
            weight, bias = self.conv1d.weight.squeeze(1), self.conv1d.bias
            qkv, conv = retrograd.causal_conv1d_update_(qkv, conv.to(qkv.dtype), weight, bias)
        cos, sin = self._tables(state.k)
        y, steps = retrograd.attention_step_(
            *self._normed(qkv),
            state.k,
            state.v,
            state.steps,
            cos=cos,
            sin=sin,
            interleaved=self.config.rotary_emb_interleaved,
            scale=self.config.softmax_scale,
            window=self._window,
        )
        return self._output(y, x, gate), state._replace(steps=steps, conv=conv)

    def _place(self, u: Tensor, state: AttentionState, cu_seqlens: Tensor | None) -> Slots:
        """Where the steps of u go in a checked state."""
        batch, time, _ = u.shape
        if cu_seqlens is None:  # each row is a sequence
            cu_seqlens = torch.arange(batch + 1, device=u.device, dtype=torch.int32) * time
        self._check_state(state, len(cu_seqlens) - 1)
        return _slots(state.steps, state.k.shape[1], cu_seqlens, batch * time)

    def _convolve(
        self,
        qkv: Tensor,
        before: Tensor | None,
        cu_seqlens: Tensor | None,
        *,
        keep: bool,
        context: Context | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """q, k and v, convolved along time if they are to be; the last inputs, if they are to be kept."""
        if self.conv1d is None:
            return qkv, None
        time: dict[str, Any] = {"cu_seqlens": cu_seqlens, "return_final_state": keep, "context": context}
        weight, bias = self.conv1d.weight.squeeze(1), self.conv1d.bias
        before = None if before is None else before.to(qkv.dtype)
        found = retrograd.causal_conv1d(qkv, weight, bias, initial_state=before, **time)
        return found if keep else (found, None)

    def _attend(
        self, qkv: Tensor, position: Tensor, cu_seqlens: Tensor | None, context: Context | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attention of sequences from their first step, their keys and values."""
        q, k, v = self._heads(qkv, position)
        options = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "context": context, **self._options}
        return retrograd.attention(q, k, v, **options), k, v

    def _continue(self, qkv: Tensor, state: AttentionState, place: Slots) -> tuple[Tensor, Tensor, Tensor]:
        """Attention of steps that follow others, and all keys and values."""
        q, k, v = self._heads(qkv.flatten(0, 1)[None], place.position)
        k, v = written(state.k, k[0], place.slot), written(state.v, v[0], place.slot)
        y = retrograd.attention(
            q,
            k.flatten(0, 1)[None],
            v.flatten(0, 1)[None],
            cu_seqlens_q=place.cu_seqlens_q,
            cu_seqlens_k=place.cu_seqlens_k,
            **self._options,
        )
        return y.masked_fill(place.full[:, None, None], torch.nan), k, v

    def _heads(self, qkv: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v by heads, of steps (T,) at these positions."""
        q, k, v = self._normed(qkv)
        if self.config.rotary_emb_dim:
            q, k = rotate(q, position, self.config), rotate(k, position, self.config)
        return q, k, v

    def _normed(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v by heads, not rotated."""
        heads, groups = self.config.num_heads, self.config.groups
        q, k, v = qkv.unflatten(-1, (heads + 2 * groups, self.size)).split((heads, groups, groups), dim=-2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def _output(self, y: Tensor, x: Tensor, gate: Tensor) -> Tensor:
        """Out of attention's results and the MLP beside it."""
        y = y.reshape(*x.shape[:-1], self.config.num_heads * self.size)
        if self.config.mlp_channels:
            y = torch.cat((y, x * F.silu(gate)), dim=-1)
        return self.out_proj(y)

    def _tables(self, k: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """cos and sin of all positions in the rows of k."""
        if not self.config.rotary_emb_dim:
            return None, None
        capacity = k.shape[1]
        cos, sin = kept_tables(1 << (capacity - 1).bit_length(), self.config, k.dtype, k.device)
        return cos[:capacity], sin[:capacity]

    @property
    def _window(self) -> tuple[int, int] | None:
        window = self.config.window
        return None if window is None else (window, 0)

    @property
    def _options(self) -> dict[str, Any]:
        return {"causal": True, "scale": self.config.softmax_scale, "window": self._window}

    @property
    def _absent(self) -> tuple[str, ...]:
        """What a state has not."""
        return () if self.conv1d is not None else ("conv",)

    def _check_state(self, state: Any, sequences: int) -> None:
        """Raise unless the state is of this layer and of so many sequences; `causal_conv1d` checks conv."""
        check_layer_state("Attention", state, AttentionState, self._absent)
        of_row = (self.config.groups, self.size)
        for name in ("k", "v"):
            shape = tuple(getattr(state, name).shape)
            if len(shape) != 4 or shape[0] != sequences or shape[2:] != of_row or shape != tuple(state.k.shape):
                expected = f"({sequences}, capacity, {of_row[0]}, {of_row[1]}), k and v alike"
                raise bad_shape("Attention", f"state.{name}", shape, expected)
        if state.steps.dtype != torch.int32:
            raise bad_dtype("Attention", "state.steps", str(state.steps.dtype), [str(torch.int32)])
        if state.steps.shape != (sequences,):
            raise bad_shape("Attention", "state.steps", state.steps.shape, f"({sequences},)")


def _capacity(given: int | None) -> int:
    """The most steps of a sequence; raises ValueError unless it is given, as an integer of at least 1."""
    if given is None:
        raise bad_value("Attention", "capacity", None, "the most steps of a sequence, an integer of at least 1")
    check_size("Attention", "capacity", given)
    return given


def _positions(u: Tensor, cu_seqlens: Tensor | None, context: Context | None = None) -> Tensor:
    """The position of each step in its sequence."""
    time = u.shape[1]
    if context is None:
        return torch.arange(time, device=u.device) if cu_seqlens is None else owned(cu_seqlens, time).offset
    position = context.positions(u.device)
    if len(position) != time:
        raise bad_shape("Attention", "u", u.shape, f"{len(position)} steps, those of this process")
    return position


def _slots(before: Tensor, capacity: int, cu_seqlens: Tensor, time: int) -> Slots:
    """Where packed steps after `before` others go; on a CPU, raises ValueError for sequences without room for them."""
    place = slots(before, capacity, cu_seqlens, time)
    if is_readable(place.steps) and bool((place.steps > capacity).any()):
        raise _full(capacity, int(place.steps.max()))
    return place


def _full(capacity: int, steps: int) -> ValueError:
    return ValueError(f"Attention: state has a capacity of {capacity} steps, expected at least {steps}, to add u")
