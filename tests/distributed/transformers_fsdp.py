"""Models of transformers on our kernels, sharded by FSDP2; imported in processes of their own, for `install`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import retrograd.compat
from retrograd.distributed import Slots, SlotSum, order_fsdp

STEPS, COUNT = 3, 4  # slots


def models() -> dict[str, Any]:
    """A Mamba-2 and a Llama, with random weights."""
    retrograd.compat.install()
    from transformers import LlamaConfig, LlamaForCausalLM, Mamba2Config, Mamba2ForCausalLM

    from retrograd.compat.transformers import patch, register

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2}
    mamba2 = Mamba2ForCausalLM(Mamba2Config(**sizes, state_size=8, head_dim=8, num_heads=4, n_groups=2))
    attention: dict[str, Any] = {"num_attention_heads": 2, "intermediate_size": 32, "attn_implementation": register()}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, **attention))
    return {"mamba2": patch(mamba2), "llama": patch(llama)}


def alone_and_with_others(rank: int, world: int, device: str) -> dict[str, dict[str, list[float]]]:
    """The losses of a process by itself, and of one of several."""
    return {"alone": losses(0, 1, device), "own": losses(rank, world, device)}


def losses(rank: int, world: int, device: str) -> dict[str, list[float]]:
    """The losses of some steps of each; whole parameters in one process, shards in several."""
    found: dict[str, list[float]] = {}
    for name, model in models().items():
        model.train()
        own, total = Slots(COUNT, world, rank), None
        if world > 1:
            mesh = init_device_mesh(device, (world,))
            for layer in model.backbone.layers if name == "mamba2" else model.model.layers:
                fully_shard(layer, mesh=mesh)
            order_fsdp(fully_shard(model, mesh=mesh), own)
        else:
            total = SlotSum(model.parameters(), own)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        tokens = torch.randint(32, (COUNT, 2, 12), generator=torch.Generator().manual_seed(1))
        found[name] = []
        for _ in range(STEPS):
            of_slots: list[Tensor] = []
            for slot in own.own:
                loss = model(tokens[slot], labels=tokens[slot], use_cache=False).loss / COUNT
                loss.backward()
                of_slots.append(loss.detach())
                if total is not None:
                    total.take()
            if total is not None:
                total.finish()
            optimizer.step()
            optimizer.zero_grad()
            found[name] += [loss.item() for loss in of_slots]
    return found
