"""Mamba-2's layer: projection, short convolution, state space dual, gated norm, projection."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

import retrograd
from retrograd.core.errors import bad_value
from retrograd.core.torch.context import Context
from retrograd.models.layers import Mamba2Config

from .checks import check_context, check_features, check_layer, check_layer_state
from .exact import is_exact
from .initial import draw_steps, zero_biases
from .linear import Linear
from .mixer import Mixer, Start
from .norm import RMSNorm
from .wide import wide
from .windows import steps_after


class Mamba2State(NamedTuple):
    """The state of a `Mamba2` layer between steps; its size does not depend on how many steps were before.

    Attributes:
        conv: (B, channels of x, B and C, d_conv - 1), the last inputs of the convolution, oldest first, in the
            activations' dtype.
        ssm: (B, H, P, N), float32.
        window: of an exact layer after its first steps: what `ssd_step` goes on from; `ssm` is then not read.
    """

    conv: Tensor
    ssm: Tensor
    window: retrograd.SsdWindow | None = None


class Projected(NamedTuple):
    """What a step's input is projected to: the MLP's gate and input, the gate of ssd, the convolution's input, dt."""

    mlp_gate: Tensor
    mlp: Tensor
    z: Tensor
    xBC: Tensor
    dt: Tensor


class Mamba2(Mixer):
    """Mamba-2's layer.

    ::

        z0, x0, z, xBC, dt = in_proj(u)                               z0, x0: a gated MLP beside, where d_ssm is smaller
        x, B, C = silu(causal_conv1d(xBC))
        y     = ssd(x, dt, A, B, C, D)                                A = -exp(A_log), delta = softplus(dt + dt_bias)
        y     = rms_norm(y, gate=z)                                   y silu(z) without rmsnorm
        out   = out_proj([silu(z0) x0, y])

    Args:
        d_model: channels of input and output.
        config: sizes and initialisation.
        device: of the parameters.
        dtype: of the parameters; A_log, D and dt_bias are created in float32.

    Raises:
        ValueError, TypeError: unless d_model is an integer of at least 1 and config a `Mamba2Config` whose heads
            divide the layer's channels.

    Source: Dao and Gu, Transformers are SSMs (2024), section 7. Names, shapes and initialisation are those of
    state-spaces/mamba.

    Example:
        >>> import torch
        >>> from retrograd.nn import Mamba2, Mamba2Config
        >>> layer = Mamba2(64, Mamba2Config(d_state=16, headdim=32))
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
        config: Mamba2Config = Mamba2Config(),
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_layer("Mamba2", d_model, config, Mamba2Config)
        self.config = config
        self.heads, self.channels = config.heads(d_model), config.channels(d_model)
        conv, mlp = config.conv_channels(d_model), config.mlp_channels(d_model)
        self.parts = (mlp, mlp, self.channels, conv, self.heads)  # of what u is projected to, `Projected`
        self.in_proj = Linear(d_model, sum(self.parts), bias=config.bias, device=device, dtype=dtype)
        # These two only hold parameters under the checkpoints' names; `causal_conv1d` and `rms_norm` use them.
        self.conv1d = nn.Conv1d(
            conv, conv, config.d_conv, groups=conv, bias=config.conv_bias, device=device, dtype=dtype
        )
        self.norm = RMSNorm(self.channels, device=device, dtype=dtype) if config.rmsnorm else None
        self.dt_bias = nn.Parameter(torch.empty(self.heads, device=device, dtype=torch.float32))
        self.A_log = nn.Parameter(torch.empty(self.heads, device=device, dtype=torch.float32))
        skips = self.channels if config.D_has_hdim else self.heads
        self.D = nn.Parameter(torch.ones(skips, device=device, dtype=torch.float32))
        self.out_proj = Linear(config.d_inner(d_model), d_model, bias=config.bias, device=device, dtype=dtype)
        self._initialise()

    @torch.no_grad()
    def divide_output(self, by: float) -> None:
        """Divide the weight of the last projection."""
        self.out_proj.weight /= by

    @torch.no_grad()
    def _initialise(self) -> None:
        zero_biases(self.in_proj, self.out_proj)
        if (bound := self.config.conv_init) is not None:
            nn.init.uniform_(self.conv1d.weight, -bound, bound)
        draw_steps(self.dt_bias, self.config)
        nn.init.uniform_(self.A_log, *self.config.A_init_range)
        self.A_log.log_()

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, *, capacity: int | None = None
    ) -> Mamba2State:
        """A state of zeros for `batch` sequences of any length; `conv` in `dtype`, by default the weights' dtype."""
        weight, config = self.conv1d.weight, self.config
        size = (batch, self.heads, config.headdim, config.d_state)
        return Mamba2State(
            torch.zeros(batch, len(weight), config.d_conv - 1, device=weight.device, dtype=dtype or weight.dtype),
            torch.zeros(size, device=weight.device, dtype=wide(weight).dtype),
        )

    def forward(
        self,
        u: Float[Tensor, "B T d_model"],
        state: Mamba2State | None = None,
        *,
        cu_seqlens: Int[Tensor, " S+1"] | None = None,
        context: Context | None = None,
    ) -> tuple[Float[Tensor, "B T d_model"], Mamba2State | None]:
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
        check_context("Mamba2", context, state, cu_seqlens)
        if state is not None:
            self._check_state(state)
            if state.window is not None and cu_seqlens is not None:
                raise bad_value("Mamba2", "cu_seqlens", "boundaries", "None, since the state has a window")
        return self._sequence(u, state, cu_seqlens, keep=state is not None, context=context)

    def begin(
        self, u: Float[Tensor, "B T d_model"], start: Start, *, cu_seqlens: Int[Tensor, " S+1"] | None = None
    ) -> tuple[Float[Tensor, "B T d_model"], Mamba2State | None]:
        """All steps of sequences from their first, and the state after them."""
        return self._sequence(u, None, cu_seqlens, keep=True)

    def _sequence(
        self,
        u: Tensor,
        state: Mamba2State | None,
        cu_seqlens: Tensor | None,
        *,
        keep: bool,
        context: Context | None = None,
    ) -> tuple[Tensor, Mamba2State | None]:
        """All steps after a state, or from the first; the state after them, if it is to be kept."""
        self._check_features(u, ("batch", "time"))
        own = self._project(u)
        conv, ssm = (state.conv, state.ssm) if state is not None else (None, None)
        time: dict[str, Any] = {"cu_seqlens": cu_seqlens, "return_final_state": keep, "context": context}
        xBC = retrograd.causal_conv1d(
            own.xBC,
            self.conv1d.weight.squeeze(1),
            self.conv1d.bias,
            activation="silu",
            initial_state=conv if conv is None else conv.to(own.xBC.dtype),
            **time,
        )
        if keep:
            xBC, conv = xBC
        x, B, C = self._heads(xBC)
        if keep and self._is_exact(u, state):
            assert conv is not None
            y, window = self._exact_steps(state, x, B, C, own, cu_seqlens)
            return self._output(y, own), Mamba2State(conv, window.state, window)
        y = retrograd.ssd(x, own.dt, self.A, B, C, initial_state=ssm, **self._options(own), **time)
        if conv is None:
            return self._output(y, own), None
        y, ssm = y
        return self._output(y, own), Mamba2State(conv, ssm)

    def _exact_steps(
        self,
        state: Mamba2State | None,
        x: Tensor,
        B: Tensor,
        C: Tensor,
        own: Projected,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, retrograd.SsdWindow]:
        """y of all steps after a state, with the bits of the whole sequence, and the window after them."""
        options = self._options(own)
        if state is None or state.window is None:
            before = None if state is None else state.ssm
            packed: dict[str, Any] = {"initial_state": before, "cu_seqlens": cu_seqlens}
            return retrograd.ssd_prefill(x, own.dt, self.A, B, C, **packed, **options)
        rows = {"x": x, "dt": own.dt, "B": B, "C": C, "z": options.pop("z")}
        return (
            steps_after(retrograd.ssd_prefill, state.window, rows, {"A": self.A, **options})
            if x.shape[1]
            else (x, state.window)
        )

    def step(
        self, u: Float[Tensor, "B d_model"], state: Mamba2State, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "B d_model"], Mamba2State]:
        """One step of generation: (out, the state after it)."""
        self._check_features(u, ("batch",))
        self._check_state(state)
        own = self._project(u)
        convolve = retrograd.causal_conv1d_update_ if in_place else retrograd.causal_conv1d_update
        xBC, conv = convolve(
            own.xBC, state.conv.to(own.xBC.dtype), self.conv1d.weight.squeeze(1), self.conv1d.bias, activation="silu"
        )
        x, B, C = self._heads(xBC)
        if state.window is None and self._is_exact(u, state):
            one = Projected(*(part[:, None] for part in own))
            y, window = self._exact_steps(state, x[:, None], B[:, None], C[:, None], one)
            return self._output(y[:, 0], own), Mamba2State(conv, window.state, window)
        if state.window is not None:
            step = retrograd.ssd_step_ if in_place else retrograd.ssd_step
            y, window = step(state.window, x, own.dt, self.A, B, C, **self._options(own))
            return self._output(y, own), Mamba2State(conv, window.state, window)
        update = retrograd.ssd_update_ if in_place else retrograd.ssd_update
        y, ssm = update(state.ssm, x, own.dt, self.A, B, C, **self._options(own))
        return self._output(y, own), Mamba2State(conv, ssm)

    def _check_state(self, state: Any) -> None:
        check_layer_state("Mamba2", state, Mamba2State, others=("window",))
        if state.window is not None and self.exact is False:
            raise bad_value("Mamba2", "state.window", "a window", "None, since the layer is not exact")

    def _is_exact(self, u: Tensor, state: Mamba2State | None) -> bool:
        """Whether steps have the bits of the whole: as chosen, after a window, or where `ssd_step_` has kernels."""
        if self.exact is None:
            if state is not None and state.window is not None:
                return True
            if not self.has_fast_steps:
                return False
        return is_exact(self.exact, u)

    @property
    def has_fast_steps(self) -> bool:
        """Whether the kernels of `ssd_step_` for Hopper take the layer's sizes."""
        return self.norm is not None and self.config.headdim % 64 == 0 and self.config.d_state in (64, 128, 256)

    def _check_features(self, u: Tensor, axes: tuple[str, ...]) -> None:
        check_features("Mamba2", u, axes, self.in_proj.in_features, self.in_proj.weight.dtype)

    @property
    def A(self) -> Float[Tensor, " H"]:
        """The decay rates of the heads, negative."""
        return -torch.exp(wide(self.A_log))

    def _project(self, u: Tensor) -> Projected:
        return Projected(*self.in_proj(u).split(self.parts, dim=-1))

    def _heads(self, xBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x by heads, B and C by groups, as views."""
        groups, states = self.config.ngroups, self.config.d_state
        x, B, C = xBC.split((self.channels, groups * states, groups * states), dim=-1)
        return self._by_head(x), B.unflatten(-1, (groups, states)), C.unflatten(-1, (groups, states))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.config.headdim))

    def _options(self, own: Projected) -> dict[str, Any]:
        """What `ssd` and `ssd_update` take besides."""
        D = wide(self.D)
        return {
            "D": self._by_head(D) if self.config.D_has_hdim else D,
            "z": self._by_head(own.z) if self.norm is None else None,
            "dt_bias": wide(self.dt_bias),
            "dt_softplus": True,
            "dt_limit": self.config.dt_limit,
        }

    def _output(self, y: Tensor, own: Projected) -> Tensor:
        y = y.flatten(-2)
        if self.norm is not None:
            y = retrograd.rms_norm(
                y,
                self.norm.weight,
                gate=own.z,
                eps=self.norm.eps,
                group_size=self.channels // self.config.ngroups,
                norm_before_gate=self.config.norm_before_gate,
            )
        if own.mlp.shape[-1]:
            y = torch.cat((F.silu(own.mlp_gate) * own.mlp, y), dim=-1)
        return self.out_proj(y)
