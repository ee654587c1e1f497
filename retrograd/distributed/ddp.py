"""DDP whose gradients are added in a fixed order."""

# Without `from __future__ import annotations`: DDP looks at the hook's.
import torch
import torch.distributed as dist
from torch import Tensor

from .exchange import Group, all_gather, in_parts, sum_of


def ordered_hook(group: Group, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """A communication hook of DistributedDataParallel: the mean over processes, in the order of the tree over ranks.

    The bits do not depend on buckets, messages or the process groups that were there before. With as many processes as
    slots they are those of `SlotSum`; a process with several slots takes that instead of DDP.

    Args:
        group: the processes; all of them for None.
        bucket: gradients, from DDP.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from retrograd.distributed import ordered_hook
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        >>> model.register_comm_hook(None, ordered_hook)
        >>> model(torch.ones(2, 4)).sum().backward()
        >>> model.module.weight.grad
        tensor([[2., 2., 2., 2.]])
        >>> dist.destroy_process_group()
    """
    world, flat = dist.get_world_size(group), bucket.buffer()
    sent = in_parts(flat, world)
    received = torch.empty_like(sent)
    arrived = dist.all_to_all_single(received, sent, group=group, async_op=True).get_future()

    def summed(_: torch.futures.Future[list[Tensor]]) -> Tensor:
        own = sum_of(received, world).div_(world)
        all_gather(sent, own, group)
        return flat if sent is flat else flat.copy_(sent[: len(flat)])

    future: torch.futures.Future[Tensor] = arrived.then(summed)
    return future
