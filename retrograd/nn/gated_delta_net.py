"""The layer of the gated delta rule: projection, short convolution, the rule, gated norm, projection."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import retrograd
from retrograd.core.errors import bad_value
from retrograd.core.torch.context import Context
from retrograd.models.layers import GatedDeltaNetConfig

from .checks import check_features, check_layer, check_layer_state
from .exact import is_exact
from .gates import sigmoid, softplus
from .initial import draw_steps, zero_biases
from .linear import Linear
from .mixer import Mixer, Start
from .norm import RMSNorm
from .wide import wide
from .windows import steps_after


class GatedDeltaNetState(NamedTuple):
    """The state of a `GatedDeltaNet` layer between steps; its size does not depend on how many steps were before.

    Attributes:
        conv: (B, channels of q, k and v, d_conv - 1), the last inputs of the convolution, oldest first, in the
            activations' dtype.
        recurrent: (B, H, V, K), float32, of the gated delta rule.
        window: of an exact layer after its first steps: what `gated_delta_rule_step` goes on from; `recurrent` is then
            not read.
    """

    conv: Tensor
    recurrent: Tensor
    window: retrograd.GatedDeltaRuleWindow | None = None


class Projected(NamedTuple):
    """What a step is projected to: the convolution's input, the gate of the norm, and what beta and g are made of."""

    qkv: Tensor
    z: Tensor
    b: Tensor
    a: Tensor


class GatedDeltaNet(Mixer):
    """The layer of the gated delta rule, as in Qwen3-Next.

    ::

        q, k, v, z, b, a = in_proj(u)
        q, k, v = silu(causal_conv1d(q, k, v))
        o   = gated_delta_rule(q, k, v, g, beta, normalize_qk=True)
                                                 g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)
        out = out_proj(rms_norm(o) silu(z))      the norm of each head, with one weight for all heads

    With `negative_eigenvalues` beta is twice as large.

    Args:
        d_model: channels of input and output.
        config: sizes and initialisation.
        device: of the parameters.
        dtype: of the parameters; A_log and dt_bias are created in float32.

    Raises:
        ValueError, TypeError: unless d_model is an integer of at least 1 and config a `GatedDeltaNetConfig`.

    The rows of `in_proj.weight` are those of q, k, v, z, b and a, head by head. Decays and rates are computed in
    float32.

    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks: Improving Mamba2 with Delta Rule (2024), section 3.4, in
    the form of Qwen3-Next.

    Example:
        >>> import torch
        >>> from retrograd.nn import GatedDeltaNet, GatedDeltaNetConfig
        >>> layer = GatedDeltaNet(64, GatedDeltaNetConfig(num_heads=4, num_heads_qk=2, head_dim_qk=16, head_dim_v=32))
        >>> u = torch.randn(2, 100, 64)
        >>> y, _ = layer(u)
        >>> first, state = layer(u[:, :60], layer.initial_state(2))
        >>> then, state = layer(u[:, 60:], state)
        >>> torch.allclose(y, torch.cat((first, then), dim=1), atol=1e-4)
        True
    """

    def __init__(
        self,
        d_model: int,
        config: GatedDeltaNetConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_layer("GatedDeltaNet", d_model, config, GatedDeltaNetConfig)
        self.config = config
        conv, heads = config.conv_channels, config.num_heads
        self.in_proj = Linear(d_model, sum(config.parts), bias=config.bias, device=device, dtype=dtype)
        # These two only hold parameters; `causal_conv1d` and `rms_norm` use them.
        self.conv1d = nn.Conv1d(
            conv, conv, config.d_conv, groups=conv, bias=config.conv_bias, device=device, dtype=dtype
        )
        self.norm = RMSNorm(config.head_dim_v, config.norm_eps, device=device, dtype=dtype)
        self.dt_bias = nn.Parameter(torch.empty(heads, device=device, dtype=torch.float32))
        self.A_log = nn.Parameter(torch.empty(heads, device=device, dtype=torch.float32))
        self.out_proj = Linear(config.value_channels, d_model, bias=config.bias, device=device, dtype=dtype)
        self._initialise()

    @torch.no_grad()
    def divide_output(self, by: float) -> None:
        """Divide the weight of the last projection."""
        self.out_proj.weight /= by

    @torch.no_grad()
    def _initialise(self) -> None:
        zero_biases(self.in_proj, self.out_proj)
        draw_steps(self.dt_bias, self.config)
        nn.init.uniform_(self.A_log, *self.config.A_init_range)
        self.A_log.log_()

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, *, capacity: int | None = None
    ) -> GatedDeltaNetState:
        """A state of zeros for `batch` sequences of any length; `conv` in `dtype`, by default the weights' dtype."""
        weight, config = self.conv1d.weight, self.config
        size = (batch, config.num_heads, config.head_dim_v, config.head_dim_qk)
        return GatedDeltaNetState(
            torch.zeros(batch, len(weight), config.d_conv - 1, device=weight.device, dtype=dtype or weight.dtype),
            torch.zeros(size, device=weight.device, dtype=wide(weight).dtype),
        )

    def forward(
        self,
        u: Float[Tensor, "B T d_model"],
        state: GatedDeltaNetState | None = None,
        *,
        cu_seqlens: Int[Tensor, " S+1"] | None = None,
        context: Context | None = None,
    ) -> tuple[Float[Tensor, "B T d_model"], GatedDeltaNetState | None]:
        """All steps of a sequence.

        Args:
            u: (B, T, d_model), in the weights' dtype unless products are autocast.
            state: the state before the first step, differentiable; its batch is S if sequences are packed.
            cu_seqlens: (S + 1,) int32 or int64, for B = 1: the start of each packed sequence, and the end of the last.
            context: None: steps of this layer cannot be divided over processes.

        Returns:
            (out, state): out (B, T, d_model), and the state after the last step, or None if `state` is None.

        Raises:
            ValueError, TypeError: naming the argument, what was expected and what was passed.
        """
        if context is not None:
            raise bad_value("GatedDeltaNet", "context", "given", "None: its steps cannot be divided over processes")
        if state is not None:
            self._check_state(state)
            if state.window is not None and cu_seqlens is not None:
                raise bad_value("GatedDeltaNet", "cu_seqlens", "boundaries", "None, since the state has a window")
        return self._sequence(u, state, cu_seqlens, keep=state is not None)

    def begin(
        self, u: Float[Tensor, "B T d_model"], start: Start, *, cu_seqlens: Int[Tensor, " S+1"] | None = None
    ) -> tuple[Float[Tensor, "B T d_model"], GatedDeltaNetState | None]:
        """All steps of sequences from their first, and the state after them."""
        return self._sequence(u, None, cu_seqlens, keep=True)

    def _sequence(
        self, u: Tensor, state: GatedDeltaNetState | None, cu_seqlens: Tensor | None, *, keep: bool
    ) -> tuple[Tensor, GatedDeltaNetState | None]:
        """All steps after a state, or from the first; the state after them, if it is to be kept."""
        self._check_features(u, ("batch", "time"))
        own = self._project(u)
        conv, recurrent = (state.conv, state.recurrent) if state is not None else (None, None)
        time: dict[str, Any] = {"cu_seqlens": cu_seqlens, "return_final_state": keep}
        qkv = retrograd.causal_conv1d(
            own.qkv,
            self.conv1d.weight.squeeze(1),
            self.conv1d.bias,
            activation="silu",
            initial_state=conv if conv is None else conv.to(own.qkv.dtype),
            **time,
        )
        if keep:
            qkv, conv = qkv
        rows = self._rows(qkv, own)
        if keep and self._is_exact(u, state):
            assert conv is not None
            o, window = self._exact_steps(state, rows, cu_seqlens)
            return self._output(o, own), GatedDeltaNetState(conv, window.state, window)
        o = retrograd.gated_delta_rule(**rows, initial_state=recurrent, normalize_qk=True, **time)
        if conv is None:
            return self._output(o, own), None
        o, recurrent = o
        return self._output(o, own), GatedDeltaNetState(conv, recurrent)

    def _exact_steps(
        self, state: GatedDeltaNetState | None, rows: dict[str, Any], cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, retrograd.GatedDeltaRuleWindow]:
        """o of all steps after a state, with the bits of the whole sequence, and the window after them."""
        prefill = retrograd.gated_delta_rule_prefill
        if state is None or state.window is None:
            before = None if state is None else state.recurrent
            return prefill(**rows, initial_state=before, cu_seqlens=cu_seqlens, normalize_qk=True)
        if not rows["v"].shape[1]:
            return rows["v"], state.window
        return steps_after(prefill, state.window, rows, {"normalize_qk": True})

    def step(
        self, u: Float[Tensor, "B d_model"], state: GatedDeltaNetState, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "B d_model"], GatedDeltaNetState]:
        """One step of generation: (out, the state after it)."""
        self._check_features(u, ("batch",))
        self._check_state(state)
        own = self._project(u)
        convolve = retrograd.causal_conv1d_update_ if in_place else retrograd.causal_conv1d_update
        qkv, conv = convolve(
            own.qkv, state.conv.to(own.qkv.dtype), self.conv1d.weight.squeeze(1), self.conv1d.bias, activation="silu"
        )
        rows = self._rows(qkv, own)
        if state.window is not None:
            step = retrograd.gated_delta_rule_step_ if in_place else retrograd.gated_delta_rule_step
            o, window = step(state.window, **rows, normalize_qk=True)
            return self._output(o, own), GatedDeltaNetState(conv, window.state, window)
        if self._is_exact(u, state):
            o, window = self._exact_steps(state, {name: row[:, None] for name, row in rows.items()})
            return self._output(o[:, 0], own), GatedDeltaNetState(conv, window.state, window)
        update = retrograd.gated_delta_rule_update_ if in_place else retrograd.gated_delta_rule_update
        o, recurrent = update(state.recurrent, **rows, normalize_qk=True)
        return self._output(o, own), GatedDeltaNetState(conv, recurrent)

    def _check_state(self, state: Any) -> None:
        check_layer_state("GatedDeltaNet", state, GatedDeltaNetState, others=("window",))
        if state.window is not None and self.exact is False:
            raise bad_value("GatedDeltaNet", "state.window", "a window", "None, since the layer is not exact")

    def _is_exact(self, u: Tensor, state: GatedDeltaNetState | None) -> bool:
        """Whether steps have the bits of the whole: as chosen, or after a window. By default not: each would compute a
        block of 64.
        """
        if self.exact is None:
            return state is not None and state.window is not None
        return is_exact(self.exact, u)

    def _check_features(self, u: Tensor, axes: tuple[str, ...]) -> None:
        check_features("GatedDeltaNet", u, axes, self.in_proj.in_features, self.in_proj.weight.dtype)

    def _project(self, u: Tensor) -> Projected:
        return Projected(*self.in_proj(u).split(self.config.parts, dim=-1))

    def _rows(self, qkv: Tensor, own: Projected) -> dict[str, Any]:
        """What `gated_delta_rule` takes with a row per step; q, k and v by heads, as views."""
        config = self.config
        keys, values = config.key_channels, config.value_channels
        q, k, v = qkv.split((keys, keys, values), dim=-1)
        beta = sigmoid(wide(own.b))
        return {
            "q": q.unflatten(-1, (config.groups, config.head_dim_qk)),
            "k": k.unflatten(-1, (config.groups, config.head_dim_qk)),
            "v": v.unflatten(-1, (config.num_heads, config.head_dim_v)),
            "g": self.A * softplus(wide(own.a) + wide(self.dt_bias)),
            "beta": 2 * beta if config.negative_eigenvalues else beta,
        }

    @property
    def A(self) -> Float[Tensor, " H"]:
        """The decay rates of the heads, negative."""
        return -torch.exp(wide(self.A_log))

    def _output(self, o: Tensor, own: Projected) -> Tensor:
        gate = own.z.unflatten(-1, o.shape[-2:])
        o = retrograd.rms_norm(o, self.norm.weight, gate=gate, eps=self.norm.eps, norm_before_gate=True)
        return self.out_proj(o.flatten(-2))
