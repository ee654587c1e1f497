"""mamba_ssm's layer of Mamba-1."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

import retrograd.nn
from retrograd.compat.checks import errors_of
from retrograd.core.errors import bad_shape
from retrograd.core.torch.arguments import check_tensors
from retrograd.nn.wide import wide

from .caches import Cached, keep, one_step


class Mamba(retrograd.nn.Mamba, Cached):
    """Mamba-1's layer on `retrograd.nn.Mamba`, with mamba_ssm's arguments, names of parameters and initialisation.

    Args:
        d_model: channels of input and output.
        d_state, d_conv, expand, dt_rank, dt_min, dt_max, dt_init, dt_scale, dt_init_floor, conv_bias, bias: as in
            `retrograd.nn.Mamba1Config`.
        use_fast_path: has no effect.
        layer_idx: the layer's number, for generation with `inference_params`.
        device, dtype: of the parameters; A_log and D are float32.

    Raises:
        ValueError, TypeError: naming the argument.

    Example:
        >>> import torch
        >>> from retrograd.compat.mamba_ssm import Mamba
        >>> layer = Mamba(d_model=64, d_state=16, d_conv=4, expand=2)
        >>> layer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | Literal["auto"] = "auto",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init: Literal["random", "constant"] = "random",
        dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        use_fast_path: bool = True,
        layer_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        config = retrograd.nn.Mamba1Config(
            d_state=d_state,
            d_conv=d_conv,
            expand=expand,
            dt_rank=dt_rank,
            dt_min=dt_min,
            dt_max=dt_max,
            dt_init=dt_init,
            dt_scale=dt_scale,
            dt_init_floor=dt_init_floor,
            conv_bias=conv_bias,
            bias=bias,
        )
        super().__init__(d_model, config, device=device, dtype=dtype)
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.dt_rank, self.use_fast_path, self.layer_idx = self.rank, use_fast_path, layer_idx
        unregularised(self.A_log, self.D)
        self.dt_proj.bias._no_reinit = True  # type: ignore[attr-defined]

    def forward(self, hidden_states: Tensor, inference_params: Any = None) -> Tensor:  # type: ignore[override]
        """The layer over a sequence (batch, seqlen, d_model); with states, over a prompt or the next step.

        Args:
            hidden_states: (batch, seqlen, d_model), a single step where `inference_params.seqlen_offset` is above 0.
            inference_params: where the states are kept, see `mamba_ssm.utils.generation.InferenceParams`.
        """
        check_tensors("Mamba", {"hidden_states": hidden_states}, required=1)
        if hidden_states.ndim != 3:
            raise bad_shape("Mamba", "hidden_states", hidden_states.shape, "(batch, seqlen, d_model)")
        with errors_of("Mamba", "Mamba", u="hidden_states"):
            if inference_params is None:
                return super().forward(hidden_states)[0]
            return self._remember(hidden_states, inference_params)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step (batch, 1, d_model): (out, conv_state, ssm_state), the states written in place. Has no gradient."""
        before = retrograd.nn.MambaState(conv_state[..., 1:], wide(ssm_state))
        out, state = super().step(one_step("Mamba", hidden_states), before)
        keep(state, conv_state, ssm_state)
        return out[:, None], conv_state, ssm_state


def unregularised(*parameters: torch.nn.Parameter) -> None:
    """Mark parameters that should have no weight decay, by the attribute that training code for mamba_ssm reads."""
    for parameter in parameters:
        parameter._no_weight_decay = True  # type: ignore[attr-defined]
