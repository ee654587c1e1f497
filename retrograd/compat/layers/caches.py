"""The states of generation as mamba_ssm's layers keep them: two tensors a layer, written in place."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd.core.errors import bad_shape, bad_value
from retrograd.nn import Mixer
from retrograd.nn.mixer import Start


class Cached(Mixer):
    """A layer that finds its states in an `InferenceParams`, by its number.

    The states are conv_state (batch, channels, d_conv), whose first column is not used, and ssm_state in float32.
    """

    layer_idx: int | None

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """States of zeros (conv_state, ssm_state); in `dtype`, by default in the weights' dtype and in float32."""
        state = self.initial_state(batch_size, dtype)
        ssm_state = state.ssm if dtype is None else state.ssm.to(dtype)
        return F.pad(state.conv, (1, 0)), ssm_state

    def _states(self, inference_params: Any, batch: int) -> tuple[Tensor, Tensor]:
        """The layer's states, of zeros if there are none yet."""
        me = type(self).__name__
        if self.layer_idx is None:
            raise bad_value(me, "layer_idx", None, "the layer's number, since inference_params is given")
        if inference_params is None:
            raise bad_value(me, "inference_params", None, "InferenceParams")
        known: dict[int, Any] = inference_params.key_value_memory_dict
        if self.layer_idx not in known:
            if inference_params.seqlen_offset > 0:
                raise bad_value(me, "inference_params.seqlen_offset", inference_params.seqlen_offset, "0 at first")
            known[self.layer_idx] = self.allocate_inference_cache(batch, 0)
        conv_state, ssm_state = known[self.layer_idx]
        if len(conv_state) != batch:
            raise bad_shape(me, "the input", (batch,), f"a batch of {len(conv_state)}, as inference_params has")
        return conv_state, ssm_state

    def _remember(self, rows: Tensor, inference_params: Any, cu_seqlens: Tensor | None = None) -> Tensor:
        """A prompt or the next step, with the states that are kept."""
        batch = len(rows) if cu_seqlens is None else len(cu_seqlens) - 1
        states = self._states(inference_params, batch)
        if inference_params.seqlen_offset > 0:
            out: Tensor = self.step(rows, *states)[0]  # type: ignore[call-arg, arg-type]
            return out
        out, state = self.begin(rows, Start(batch), cu_seqlens=cu_seqlens)
        keep(state, *states)
        return out


def one_step(layer: str, hidden_states: Tensor) -> Tensor:
    """(batch, d_model) of (batch, 1, d_model)."""
    if hidden_states.ndim != 3 or hidden_states.shape[1] != 1:
        raise bad_shape(layer, "hidden_states", hidden_states.shape, "(batch, 1, d_model), a single step")
    return hidden_states[:, 0]


@torch.no_grad()
def keep(state: Any, conv_state: Tensor, ssm_state: Tensor) -> None:
    """Write a layer's state to its tensors."""
    conv_state[..., 1:].copy_(state.conv)
    ssm_state.copy_(state.ssm)
