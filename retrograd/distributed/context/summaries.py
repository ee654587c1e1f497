"""What a process makes of a state that passes it: its summary, of which the states at all borders come.

A recurrence is linear in its state. Behind a process's steps one that entered has become decay * state + own, where
`own` is what these steps make of a state of zeros. Each process finds both without knowing what enters, all send theirs
to all, and each goes through those before it, in their order.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from retrograd.distributed.exchange import all_gather

from .collectives import Group, real


def passed_by_all(own: Tensor, decay: Tensor, neighbour: int | None, group: Group) -> Tensor | None:
    """What comes from a neighbour; None without one.

    Args:
        own: what this process makes of zeros, or of the state that its sequence begins with.
        decay: what it leaves of a state that enters; zeros where none passes it.
        neighbour: its rank, the one before this one or the one behind it.
        group: the processes.
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    message = torch.stack([own, decay])
    every = message.new_empty(world, *message.shape)
    all_gather(real(every), real(message), group)
    if neighbour is None:
        return None
    state = torch.zeros_like(own)
    for place in range(rank) if neighbour < rank else range(world - 1, rank, -1):
        own, decay = every[place]
        state = torch.where(decay == 0, own, own + decay * state)  # not 0 times what is infinite in another sequence
    return state
