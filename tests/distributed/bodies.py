"""What the processes of these tests compute."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from processes import refused
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from retrograd.distributed import Slots, SlotSum, all_reduce_, order_fsdp, ordered_hook, reduce_scatter
from retrograd.nn import AttentionConfig, LanguageModel, Mamba2Config, MambaConfig

COUNT = 8  # slots


def hybrid(d_model: int, vocab_size: int, mamba2: tuple[int, int], heads: int, d_conv: int, rotary: int) -> MambaConfig:
    """Two layers of Mamba-2, of these states and channels a head, and attention between them."""
    return MambaConfig(
        d_model=d_model,
        n_layer=3,
        vocab_size=vocab_size,
        ssm_cfg=Mamba2Config(d_state=mamba2[0], headdim=mamba2[1]),
        attn_layer_idx=(1,),
        attn_cfg=AttentionConfig(num_heads=heads, d_conv=d_conv, rotary_emb_dim=rotary),
    )


CONFIGS = {  # by device; those of a GPU are of sizes that kernels take
    "cpu": hybrid(16, 24, mamba2=(4, 8), heads=2, d_conv=3, rotary=4),
    "cuda": hybrid(256, 1024, mamba2=(64, 64), heads=4, d_conv=4, rotary=32),
}
TIME = {"cpu": 9, "cuda": 300}
Gradients = dict[str, Tensor]


def model_and_batch(device: str) -> tuple[LanguageModel, Tensor]:
    """The same in every process; a batch (slots, B, T)."""
    torch.manual_seed(0)
    config = CONFIGS[device]
    tokens = torch.randint(config.vocab_size, (COUNT, 2, TIME[device]))
    return LanguageModel(config).to(device), tokens.to(device)


def loss_of(model: Any, tokens: Tensor) -> Tensor:
    """Of one slot, as its part of the batch's."""
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()) / COUNT


def by_slots(rank: int, world: int, device: str, dtype: torch.dtype | None = None) -> Gradients:
    """Gradients that `SlotSum` adds."""
    model, batch = model_and_batch(device)
    own = Slots(COUNT, world, rank)
    total = SlotSum(model.parameters(), own, dtype=dtype)
    for slot in own.own:
        loss_of(model, batch[slot]).backward()
        total.take()
    total.finish()
    return {name: gradient(parameter) for name, parameter in model.named_parameters()}


def gradient(parameter: Tensor) -> Tensor:
    """Of a parameter, whole."""
    found = parameter.grad
    assert found is not None
    return found.full_tensor() if isinstance(found, DTensor) else found


def by_fsdp(rank: int, world: int, device: str) -> Gradients:
    """Gradients of a sharded model, two steps in a row, of which the second is returned."""
    model, batch = model_and_batch(device)
    mesh = init_device_mesh(device, (world,))
    for block in model.backbone.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    own = Slots(COUNT, world, rank)
    order_fsdp(model, own)
    for _ in range(2):
        model.zero_grad()
        for slot in own.own:
            loss_of(model, batch[slot]).backward()
    return {name: gradient(parameter) for name, parameter in model.named_parameters()}


def by_ddp(rank: int, world: int, device: str) -> Gradients:
    """Gradients of DDP with our hook, of as many slots as there are processes."""
    model, batch = model_and_batch(device)
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    parallel.register_comm_hook(None, ordered_hook)
    loss_of(parallel, batch[rank]).backward()
    return {name: gradient(parameter) for name, parameter in model.named_parameters()}


def by_slots_of_ranks(rank: int, world: int, device: str) -> Gradients:
    """What `by_ddp` has to give: the mean of the first slots, one of each process."""
    model, batch = model_and_batch(device)
    total = SlotSum(model.parameters(), Slots(world, world, rank))
    loss_of(model, batch[rank]).backward()
    total.take()
    total.finish()
    return {name: gradient(parameter) / world for name, parameter in model.named_parameters()}


def all_ways(rank: int, world: int, device: str) -> dict[str, Any]:
    """All of them, and the plain sums."""
    torch.manual_seed(rank)
    terms = torch.randn(5 * world).to(device)
    found: dict[str, Any] = {
        "slots": by_slots(rank, world, device),
        "float64": by_slots(rank, world, device, torch.float64),
        "fsdp": by_fsdp(rank, world, device),
        "ddp": by_ddp(rank, world, device),
        "ranks": by_slots_of_ranks(rank, world, device),
    }
    if device == "cuda":  # what one GPU has, each of them
        found["alone"] = by_slots(0, 1, device)
    found |= {"terms": terms, "part": reduce_scatter(terms), "sum": all_reduce_(terms[:7].clone())}
    return torch.utils._pytree.tree_map(Tensor.cpu, found)


def refusals(rank: int, world: int, device: str) -> list[str]:
    """The messages of calls that do not fit each other."""
    same, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2 + rank)
    fitting, count = Slots(4, world, rank), Slots(4 if rank else 2, world, rank)
    calls = [
        lambda: SlotSum(other.parameters(), fitting),
        lambda: SlotSum(list(same.parameters())[rank:], fitting),
        lambda: SlotSum(same.parameters(), count),
        lambda: SlotSum(same.parameters(), Slots(2, 2, 1 - rank)),
    ]
    messages = refused(calls)
    dist.barrier()
    return messages
