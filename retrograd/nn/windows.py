"""Several steps of an op after a window, with the bits that they have in the whole sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Window = TypeVar("Window", bound=tuple[Any, ...])


def steps_after(
    prefill: Callable[..., tuple[Tensor, Window]],
    window: Window,
    rows: Mapping[str, Tensor | None],
    others: Mapping[str, Any],
) -> tuple[Tensor, Window]:
    """The rows (B, T, ...) of T steps after a window, and the window after them.

    The window's steps and the new ones are sequences that begin at a border: packed ones with gaps, since rows of the
    window may have different numbers of steps.

    Args:
        prefill: the op's, such as `ssd_prefill`.
        window: of B rows.
        rows: what it takes with a row per step, (B, T, ...), or None.
        others: what it takes besides.
    """
    before: dict[str, Tensor] = window._asdict()  # type: ignore[attr-defined]
    steps, device = before["steps"].long(), before["steps"].device
    (kept,) = {before[name].shape[1] for name in rows if name in before}
    batch, time = next(new for new in rows.values() if new is not None).shape[:2]
    length = kept + time  # of a row, of which not all is used
    place = torch.arange(length, device=device)[None] - steps[:, None]
    row = torch.arange(batch, device=device)[:, None]

    def joined(name: str, new: Tensor) -> Tensor:
        """(1, B length, ...): a row's steps in the window, the new ones, and what belongs to no sequence."""
        from_new = new[row, place.clamp(0, time - 1)]
        old = before.get(name)  # what only the results of earlier steps need is in none
        if old is not None:
            older = F.pad(old, (0, 0) * (old.ndim - 2) + (0, time))
            from_new = torch.where(place.view(batch, length, *(1,) * (new.ndim - 2)) < 0, older, from_new)
        return from_new.flatten(0, 1)[None]

    start = torch.arange(batch + 1, device=device) * length
    bounds = torch.cat((torch.stack((start[:-1], start[:-1] + steps + time), 1).flatten(), start[-1:])).int()
    state = torch.stack((before["state"], torch.zeros_like(before["state"])), 1).flatten(0, 1)
    packed: dict[str, Any] = {name: None if new is None else joined(name, new) for name, new in rows.items()}
    y, after = prefill(**packed, **others, initial_state=state, cu_seqlens=bounds)
    y = y[0].unflatten(0, (batch, length))[row, steps[:, None] + torch.arange(time, device=device)]
    return y, type(window)(*(tensor[::2].contiguous() for tensor in after))  # every other sequence is a gap
