"""The functions of Mamba's models as layers, which transformers maps by the names of mamba_ssm and causal_conv1d.

Their parameters are those of the functions in transformers that they replace. What else these models pass reaches the
function where it knows the name, as with the original packages.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor, nn

from .compat.causal_conv1d import causal_conv1d_interface
from .compat.mamba_ssm.ops import selective_scan_interface
from .compat.mamba_ssm.ops.triton import selective_state_update as update
from .compat.mamba_ssm.ops.triton import ssd_combined


class causal_conv1d_fn(nn.Module):
    """Depthwise causal convolution along the last axis."""

    def forward(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The convolution, as `causal_conv1d.causal_conv1d_fn`."""
        function = causal_conv1d_interface.causal_conv1d_fn
        return function(hidden_states, weight, bias, activation=activation, **_known(function, kwargs))


class causal_conv1d_update(nn.Module):
    """One step of the convolution; the state is written in place."""

    has_backward: bool = False

    def forward(
        self,
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        """The step, as `causal_conv1d.causal_conv1d_update`."""
        return causal_conv1d_interface.causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)


class selective_scan_fn(nn.Module):
    """Mamba-1's scan."""

    def forward(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        use_mambapy: bool = False,
        use_associative_scan: bool = False,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The scan, as `mamba_ssm`'s; the choice between implementations in PyTorch has no effect."""
        function = selective_scan_interface.selective_scan_fn
        return function(hidden_states, dt, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)


class mamba_inner_fn(nn.Module):
    """A Mamba-1 block after its first projection."""

    def forward(
        self,
        xz: Tensor,
        conv1d_weight: Tensor,
        conv1d_bias: Tensor | None,
        x_proj_weight: Tensor,
        delta_proj_weight: Tensor,
        out_proj_weight: Tensor,
        out_proj_bias: Tensor | None,
        A: Tensor,
        B: Tensor | None = None,
        C: Tensor | None = None,
        D: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = True,
        b_rms_weight: Tensor | None = None,
        c_rms_weight: Tensor | None = None,
        dt_rms_weight: Tensor | None = None,
        b_c_dt_rms_eps: float = 1e-6,
        **kwargs: Any,
    ) -> Tensor:
        """The block, as `mamba_ssm`'s."""
        function = selective_scan_interface.mamba_inner_fn
        return function(
            xz,
            conv1d_weight,
            conv1d_bias,
            x_proj_weight,
            delta_proj_weight,
            out_proj_weight,
            out_proj_bias,
            A,
            B,
            C,
            D,
            delta_bias,
            delta_softplus=delta_softplus,
            b_rms_weight=b_rms_weight,
            c_rms_weight=c_rms_weight,
            dt_rms_weight=dt_rms_weight,
            b_c_dt_rms_eps=b_c_dt_rms_eps,
            **_known(function, kwargs),
        )


class selective_state_update(nn.Module):
    """One step of Mamba-1's or Mamba-2's scan; the state is written in place."""

    has_backward: bool = False

    def forward(
        self,
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        z: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The step, as `mamba_ssm`'s."""
        function = update.selective_state_update
        return function(state, hidden_states, dt, A, B, C, D, z, dt_bias, dt_softplus, **_known(function, kwargs))


class mamba_chunk_scan_combined(nn.Module):
    """Mamba-2's scan."""

    def forward(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, math.inf),
        return_final_states: bool = False,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, ...]:
        """The scan, as `mamba_ssm`'s."""
        function = ssd_combined.mamba_chunk_scan_combined
        return function(
            hidden_states,
            dt,
            A,
            B,
            C,
            chunk_size,
            D=D,
            dt_bias=dt_bias,
            initial_states=initial_states,
            dt_softplus=dt_softplus,
            dt_limit=dt_limit,
            return_final_states=return_final_states,
            **_known(function, kwargs),
        )


class mamba_split_conv1d_scan_combined(nn.Module):
    """A Mamba-2 layer after its first projection."""

    def forward(
        self,
        zxbcdt: Tensor,
        conv1d_weight: Tensor,
        conv1d_bias: Tensor | None,
        dt_bias: Tensor,
        A: Tensor,
        D: Tensor,
        chunk_size: int,
        initial_states: Tensor | None = None,
        dt_limit: tuple[float, float] = (0.0, math.inf),
        return_final_states: bool = False,
        activation: str = "silu",
        rmsnorm_weight: Tensor | None = None,
        rmsnorm_eps: float = 1e-6,
        outproj_weight: Tensor | None = None,
        outproj_bias: Tensor | None = None,
        headdim: int | None = None,
        ngroups: int = 1,
        norm_before_gate: bool = True,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The layer, as `mamba_ssm`'s."""
        function = ssd_combined.mamba_split_conv1d_scan_combined
        return function(
            zxbcdt,
            conv1d_weight,
            conv1d_bias,
            dt_bias,
            A,
            D,
            chunk_size,
            initial_states=initial_states,
            dt_limit=dt_limit,
            return_final_states=return_final_states,
            activation=activation,
            rmsnorm_weight=rmsnorm_weight,
            rmsnorm_eps=rmsnorm_eps,
            outproj_weight=outproj_weight,
            outproj_bias=outproj_bias,
            headdim=headdim,
            ngroups=ngroups,
            norm_before_gate=norm_before_gate,
            **_known(function, kwargs),
        )


def _known(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a function takes of the arguments."""
    names = _names(function)
    return {name: value for name, value in given.items() if name in names}


@cache
def _names(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
