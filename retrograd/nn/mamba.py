"""Mamba-1's layer: projection, short convolution, selective scan, gate, projection."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import retrograd
from retrograd.core.torch.context import Context
from retrograd.models.layers import Mamba1Config

from .checks import check_context, check_features, check_layer, check_layer_state
from .initial import draw_steps, zero_biases
from .linear import Linear
from .mixer import Mixer, Start
from .wide import wide


class MambaState(NamedTuple):
    """The state of a `Mamba` layer between steps; its size does not depend on how many steps were before.

    Attributes:
        conv: (B, d_inner, d_conv - 1), the last inputs of the convolution, oldest first, in the activations' dtype.
        ssm: (B, d_inner, d_state), float32.
    """

    conv: Tensor
    ssm: Tensor


class Mamba(Mixer):
    """Mamba-1's layer.

    ::

        x, z  = in_proj(u)
        x     = silu(causal_conv1d(x))
        dt, B, C = x_proj(x)
        y     = selective_scan(x, dt_proj(dt), A, B, C, D, z)         A = -exp(A_log), delta = softplus(dt + bias)
        out   = out_proj(y)

    Args:
        d_model: channels of input and output.
        config: sizes and initialisation.
        device: of the parameters.
        dtype: of the parameters; A_log and D are created in float32.

    Raises:
        ValueError, TypeError: unless d_model is an integer of at least 1 and config a `Mamba1Config`.

    Source: Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces (2023), section 3.4. Names,
    shapes and initialisation are those of state-spaces/mamba.

    Example:
        >>> import torch
        >>> from retrograd.nn import Mamba, Mamba1Config
        >>> layer = Mamba(64, Mamba1Config(d_state=8))
        >>> u = torch.randn(2, 100, 64)
        >>> y, _ = layer(u)
        >>> first, state = layer(u[:, :60], layer.initial_state(2))
        >>> then, state = layer(u[:, 60:], state)
        >>> torch.allclose(y, torch.cat((first, then), dim=1), atol=1e-5)
        True
    """

    def __init__(
        self,
        d_model: int,
        config: Mamba1Config = Mamba1Config(),
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_layer("Mamba", d_model, config, Mamba1Config)
        self.config = config
        self.d_inner, self.rank = config.d_inner(d_model), config.rank(d_model)
        bias = config.bias
        self.in_proj = Linear(d_model, 2 * self.d_inner, bias=bias, device=device, dtype=dtype)
        # It only holds weight and bias under the checkpoints' names; `causal_conv1d` does the computation.
        self.conv1d = nn.Conv1d(
            self.d_inner,
            self.d_inner,
            config.d_conv,
            groups=self.d_inner,
            bias=config.conv_bias,
            device=device,
            dtype=dtype,
        )
        self.x_proj = Linear(self.d_inner, self.rank + 2 * config.d_state, bias=False, device=device, dtype=dtype)
        self.dt_proj = Linear(self.rank, self.d_inner, device=device, dtype=dtype)
        self.A_log = nn.Parameter(torch.empty(self.d_inner, config.d_state, device=device, dtype=torch.float32))
        self.D = nn.Parameter(torch.ones(self.d_inner, device=device, dtype=torch.float32))
        self.out_proj = Linear(self.d_inner, d_model, bias=bias, device=device, dtype=dtype)
        self._initialise()

    @torch.no_grad()
    def divide_output(self, by: float) -> None:
        """Divide the weight of the last projection."""
        self.out_proj.weight /= by

    @torch.no_grad()
    def _initialise(self) -> None:
        zero_biases(self.in_proj, self.out_proj)
        bound = self.rank**-0.5 * self.config.dt_scale
        if self.config.dt_init == "constant":
            nn.init.constant_(self.dt_proj.weight, bound)
        else:
            nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        draw_steps(self.dt_proj.bias, self.config)
        self.A_log.copy_(torch.arange(1, self.config.d_state + 1, device=self.A_log.device).log().expand_as(self.A_log))

    def initial_state(self, batch: int, dtype: torch.dtype | None = None, *, capacity: int | None = None) -> MambaState:
        """A state of zeros for `batch` sequences of any length; `conv` in `dtype`, by default the weights' dtype."""
        weight = self.conv1d.weight
        past = weight.shape[-1] - 1
        return MambaState(
            torch.zeros(batch, self.d_inner, past, device=weight.device, dtype=dtype or weight.dtype),
            torch.zeros(batch, self.d_inner, self.config.d_state, device=weight.device, dtype=wide(weight).dtype),
        )

    def forward(
        self,
        u: Float[Tensor, "B T d_model"],
        state: MambaState | None = None,
        *,
        cu_seqlens: Int[Tensor, " S+1"] | None = None,
        context: Context | None = None,
    ) -> tuple[Float[Tensor, "B T d_model"], MambaState | None]:
        """All steps of a sequence.

        Args:
            u: (B, T, d_model), in the weights' dtype unless products are autocast.
            state: the state before the first step, differentiable; its batch is S if sequences are packed.
            cu_seqlens: (S + 1,) int32 or int64, for B = 1: the start of each packed sequence, and the end of the last.
            context: where steps are divided over processes, as in `LanguageModel.forward`.

        Returns:
            (out, state): out (B, T, d_model), and the state after the last step, or None if `state` is None.

        Raises:
            ValueError, TypeError: naming the argument, what was expected and what was passed.
        """
        check_context("Mamba", context, state, cu_seqlens)
        if state is not None:
            check_layer_state("Mamba", state, MambaState)
        return self._sequence(u, state, cu_seqlens, keep=state is not None, context=context)

    def begin(
        self, u: Float[Tensor, "B T d_model"], start: Start, *, cu_seqlens: Int[Tensor, " S+1"] | None = None
    ) -> tuple[Float[Tensor, "B T d_model"], MambaState | None]:
        """All steps of sequences from their first, and the state after them."""
        return self._sequence(u, None, cu_seqlens, keep=True)

    def _sequence(
        self,
        u: Tensor,
        state: MambaState | None,
        cu_seqlens: Tensor | None,
        *,
        keep: bool,
        context: Context | None = None,
    ) -> tuple[Tensor, MambaState | None]:
        """All steps after a state, or from the first; the state after them, if it is to be kept."""
        self._check_features(u, ("batch", "time"))
        x, z = self.in_proj(u).chunk(2, dim=-1)
        conv, ssm = state if state is not None else (None, None)
        time: dict[str, Any] = {"cu_seqlens": cu_seqlens, "return_final_state": keep, "context": context}
        x = retrograd.causal_conv1d(
            x,
            self.conv1d.weight.squeeze(1),
            self.conv1d.bias,
            activation="silu",
            initial_state=conv if conv is None else conv.to(x.dtype),
            **time,
        )
        if keep:
            x, conv = x
        dt, B, C = self._select(x)
        y = retrograd.selective_scan(
            x,
            dt,
            self.A,
            B,
            C,
            D=wide(self.D),
            z=z,
            dt_bias=wide(self.dt_proj.bias),
            dt_softplus=True,
            initial_state=ssm,
            **time,
        )
        if conv is None:
            return self.out_proj(y), None
        y, ssm = y
        return self.out_proj(y), MambaState(conv, ssm)

    def step(
        self, u: Float[Tensor, "B d_model"], state: MambaState, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "B d_model"], MambaState]:
        """One step of generation: (out, the state after it)."""
        self._check_features(u, ("batch",))
        check_layer_state("Mamba", state, MambaState)
        x, z = self.in_proj(u).chunk(2, dim=-1)
        convolve = retrograd.causal_conv1d_update_ if in_place else retrograd.causal_conv1d_update
        x, conv = convolve(
            x, state.conv.to(x.dtype), self.conv1d.weight.squeeze(1), self.conv1d.bias, activation="silu"
        )
        dt, B, C = self._select(x)
        y, ssm = retrograd.selective_state_update(
            state.ssm,
            x,
            dt,
            self.A,
            B,
            C,
            D=wide(self.D),
            z=z,
            dt_bias=wide(self.dt_proj.bias),
            dt_softplus=True,
        )
        return self.out_proj(y), MambaState(conv, ssm)

    def _check_features(self, u: Tensor, axes: tuple[str, ...]) -> None:
        check_features("Mamba", u, axes, self.in_proj.in_features, self.in_proj.weight.dtype)

    @property
    def A(self) -> Float[Tensor, "D N"]:
        """The decay rates of the states, negative."""
        return -torch.exp(wide(self.A_log))

    def _select(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dt without its bias, B and C."""
        dt, B, C = self.x_proj(x).split((self.rank, self.config.d_state, self.config.d_state), dim=-1)
        return self.dt_proj.product(dt), B, C
