"""Several steps of `ssd` after a window, with the bits that they have in the whole sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import retrograd


def steps_after(
    window: retrograd.SsdWindow, rows: Mapping[str, Tensor], others: Mapping[str, Any]
) -> tuple[Tensor, retrograd.SsdWindow]:
    """y (B, T, H, P) of T steps after a window, and the window after them.

    The window's steps and the new ones are sequences that begin at a border: packed ones with gaps, since rows of the
    window may have different numbers of steps.

    Args:
        window: of B rows.
        rows: x, dt, B and C of `ssd`, and z or None, (B, T, ...).
        others: what `ssd_prefill` takes besides.
    """
    batch, time = rows["x"].shape[:2]
    steps, device = window.steps.long(), window.steps.device
    length = window.x.shape[1] + time  # of a row, of which not all is used
    place = torch.arange(length, device=device)[None] - steps[:, None]
    row = torch.arange(batch, device=device)[:, None]

    def joined(name: str, new: Tensor) -> Tensor:
        """(1, B length, ...): a row's steps in the window, the new ones, and what belongs to no sequence."""
        from_new = new[row, place.clamp(0, time - 1)]
        old = getattr(window, name, None)  # C and z of earlier steps are in none: their results are not needed
        if old is not None:
            older = F.pad(old, (0, 0) * (old.ndim - 2) + (0, time))
            from_new = torch.where(place.view(batch, length, *(1,) * (new.ndim - 2)) < 0, older, from_new)
        return from_new.flatten(0, 1)[None]

    start = torch.arange(batch + 1, device=device) * length
    bounds = torch.cat((torch.stack((start[:-1], start[:-1] + steps + time), 1).flatten(), start[-1:])).int()
    state = torch.stack((window.state, torch.zeros_like(window.state)), 1).flatten(0, 1)
    packed: dict[str, Any] = {name: None if new is None else joined(name, new) for name, new in rows.items()}
    y, after = retrograd.ssd_prefill(**packed, **others, initial_state=state, cu_seqlens=bounds)
    y = y[0].unflatten(0, (batch, length))[row, steps[:, None] + torch.arange(time, device=device)]
    return y, retrograd.SsdWindow(*(tensor[::2].contiguous() for tensor in after))  # every other sequence is a gap
