"""Packed sequences told apart by their positions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from retrograd.compat.memo import PerTensor

_sequences = PerTensor[Tensor | None]()


def sequences(position_ids: Tensor, batch: int, steps: int, tokens: Tensor | None = None) -> Tensor | None:
    """(batch, steps) int32, the sequences that positions tell apart; None if there is one in each row.

    Positions of steps that are no tokens say nothing. The host reads whether there are more, once for all layers.
    """
    if position_ids.ndim != 2 or position_ids.shape[1] != steps or steps < 2:
        return None  # of an image's axes, or of other steps
    if tokens is not None:
        among = _runs_of_tokens(position_ids.expand(batch, -1), tokens)
        return among if torch.compiler.is_compiling() or bool(among.any()) else None
    found = _runs(position_ids) if torch.compiler.is_compiling() else _sequences(position_ids, _several)
    return None if found is None else found.expand(batch, -1)


def numbered(begins: Tensor) -> Tensor:
    """(B, T) int32, the number of each step's sequence; begins (B, T - 1) says which later steps begin one."""
    return pad(begins, (1, 0)).cumsum(-1).int()


def _several(position_ids: Tensor) -> Tensor | None:
    found = _runs(position_ids)
    return found if bool(found.any()) else None


def _runs(position_ids: Tensor) -> Tensor:
    """The number of the run of successive positions that each step is in."""
    return numbered(position_ids.diff() != 1)


def _runs_of_tokens(position_ids: Tensor, tokens: Tensor) -> Tensor:
    """Likewise, among the tokens; a step without one has the number of the token before it."""
    before = last_token_before(tokens)
    went_on = position_ids[:, 1:] - position_ids.gather(1, before.clamp(min=0)) == 1
    return numbered(tokens[:, 1:] & (before >= 0) & ~went_on)


def last_token_before(tokens: Tensor) -> Tensor:
    """(B, T - 1), for each step but the first the place of the last token before it; -1 where there is none."""
    places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    return places.masked_fill(~tokens, -1).cummax(1).values[:, :-1]
