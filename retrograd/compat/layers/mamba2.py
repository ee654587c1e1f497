"""mamba_ssm's layer of Mamba-2."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import retrograd.nn
from retrograd.compat.checks import expect, expect_integer, refuse
from retrograd.compat.sequences import check_bounds, joined, runs_of
from retrograd.core.errors import bad_shape, bad_value
from retrograd.core.torch.arguments import check_tensors
from retrograd.nn.wide import wide

from .caches import Cached, keep, one_step
from .mamba import unregularised


class Mamba2(retrograd.nn.Mamba2, Cached):
    """Mamba-2's layer on `retrograd.nn.Mamba2`, with mamba_ssm's arguments, names of parameters and initialisation.

    Args:
        d_model: channels of input and output.
        d_state, d_conv, conv_init, expand, headdim, d_ssm, ngroups, A_init_range, D_has_hdim, rmsnorm,
            norm_before_gate, dt_min, dt_max, dt_init_floor, dt_limit, bias, conv_bias: as in
            `retrograd.nn.Mamba2Config`.
        chunk_size, use_mem_eff_path: have no effect.
        layer_idx: the layer's number, for generation with `inference_params`.
        process_group: refused: tensor parallelism.
        sequence_parallel: has no effect without a process group.
        device, dtype: of the parameters; A_log, D and dt_bias are float32.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.

    Example:
        >>> import torch
        >>> from retrograd.compat.mamba_ssm import Mamba2
        >>> layer = Mamba2(d_model=64, d_state=16, headdim=32)
        >>> layer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        conv_init: float | None = None,
        expand: int = 2,
        headdim: int = 64,
        d_ssm: int | None = None,
        ngroups: int = 1,
        A_init_range: tuple[float, float] = (1, 16),
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        dt_limit: tuple[float, float] = (0.0, math.inf),
        bias: bool = False,
        conv_bias: bool = True,
        chunk_size: int = 256,
        use_mem_eff_path: bool = True,
        layer_idx: int | None = None,
        process_group: None = None,
        sequence_parallel: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        refuse("Mamba2", "", process_group=process_group)
        config = retrograd.nn.Mamba2Config(
            d_state=d_state,
            d_conv=d_conv,
            expand=expand,
            headdim=headdim,
            d_ssm=d_ssm,
            ngroups=ngroups,
            A_init_range=A_init_range,
            D_has_hdim=D_has_hdim,
            rmsnorm=rmsnorm,
            norm_before_gate=norm_before_gate,
            dt_min=dt_min,
            dt_max=dt_max,
            dt_init_floor=dt_init_floor,
            dt_limit=dt_limit,
            conv_init=conv_init,
            conv_bias=conv_bias,
            bias=bias,
        )
        super().__init__(d_model, config, device=device, dtype=dtype)
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner, self.d_ssm, self.headdim = config.d_inner(d_model), self.channels, headdim
        self.nheads, self.ngroups, self.D_has_hdim = self.heads, ngroups, D_has_hdim
        self.rmsnorm, self.norm_before_gate, self.dt_limit = rmsnorm, norm_before_gate, dt_limit
        self.chunk_size, self.use_mem_eff_path, self.layer_idx = chunk_size, use_mem_eff_path, layer_idx
        unregularised(self.A_log, self.D, self.dt_bias)

    def forward(  # type: ignore[override]
        self,
        u: Tensor,
        seqlen: int | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        inference_params: Any = None,
    ) -> Tensor:
        """The layer over a sequence; with states, over a prompt or the next step.

        Args:
            u: (batch, seqlen, d_model), a single step where `inference_params.seqlen_offset` is above 0.
            seqlen: steps of a row, where u is (batch seqlen, d_model).
            seq_idx: (batch, seqlen) int32: which sequence a step belongs to, as in `mamba_chunk_scan_combined`; 0 is
                returned at padding. With `inference_params` only beside `cu_seqlens`.
            cu_seqlens: (sequences + 1,) int32, for a batch of 1: the start of each packed sequence, and the end of the
                last. With `inference_params` each sequence has a state of its own.
            inference_params: where the states are kept, see `mamba_ssm.utils.generation.InferenceParams`.

        Returns:
            out, shaped as u.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        me = "Mamba2"
        check_tensors(me, {"u": u, "seq_idx": seq_idx, "cu_seqlens": cu_seqlens}, required=1)
        rows = u
        if seqlen is not None:
            expect_integer(me, "seqlen", seqlen)
            if u.ndim != 2 or len(u) % seqlen:
                raise bad_shape(me, "u", u.shape, f"(batch seqlen, d_model), seqlen = {seqlen}")
            rows = u.unflatten(0, (-1, seqlen))
        if rows.ndim != 3:
            raise bad_shape(me, "u", u.shape, "(batch, seqlen, d_model)")
        steps_on = inference_params is not None and inference_params.seqlen_offset > 0
        runs = None
        if seq_idx is not None and not steps_on:
            expect(me, "seq_idx", seq_idx, rows.shape[:2], "(batch, seqlen)", "int32 or int64")
            runs = runs_of(me, seq_idx)
        if cu_seqlens is not None and not steps_on:
            if len(rows) != 1:
                raise bad_shape(me, "u", u.shape, "a batch of 1, since cu_seqlens is given")
            check_bounds(me, cu_seqlens, runs)
            cu_seqlens = cu_seqlens.int()
        if inference_params is not None:
            if seq_idx is not None and cu_seqlens is None:
                raise bad_value(me, "cu_seqlens", None, "a tensor, since seq_idx and inference_params are given")
            out = self._remember(rows, inference_params, cu_seqlens)
        elif runs is not None:
            out = super().forward(joined(rows), cu_seqlens=runs.cu_seqlens)[0].view(rows.shape)
        else:
            out = super().forward(rows, cu_seqlens=cu_seqlens)[0]
        if runs is not None:
            out = runs.without_padding(out)
        return out.reshape(u.shape)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step (batch, 1, d_model): (out, conv_state, ssm_state), the states written in place. Has no gradient."""
        before = retrograd.nn.Mamba2State(conv_state[..., 1:], wide(ssm_state))
        out, state = super().step(one_step("Mamba2", hidden_states), before)
        keep(state, conv_state, ssm_state)
        return out[:, None], conv_state, ssm_state
