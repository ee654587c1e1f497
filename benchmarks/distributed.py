"""Sums over GPUs in a fixed order against NCCL's own, alone and in training steps; on one GPU, what slots cost.

    torchrun --nproc-per-node 2 benchmarks/distributed.py [RESULTS]
    torchrun --nproc-per-node 1 benchmarks/distributed.py [RESULTS]

The steps are those of Mamba-2 of 370m in `retrograd.nn`, activations in bf16, 8 x 2048 tokens a GPU: forward, loss,
backward, the sum over GPUs, AdamW. Parameters are bf16, under FSDP2 float32. Rows go to RESULTS/distributed.jsonl, by
default in benchmarks/results/<gpu>. Implementations are timed in turns: A B A B, and so on.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from model_shapes import MODELS, VOCABULARY
from model_torch import next_token_loss
from own_process import add
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from retrograd.bench.environment import folder_name, versions
from retrograd.distributed import Slots, SlotSum, all_reduce_, order_fsdp, ordered_hook, reduce_scatter
from retrograd.nn import LanguageModel

RESULTS = Path(__file__).resolve().parent / "results"
MODEL = "mamba2-370m"
SIZES = (8, 64, 512)  # MB of a sum
ROUNDS, CALLS, STEPS, WARM_UP = 7, 10, 4, 3
Step = Callable[[], Any]


def reductions(megabytes: int, dtype: torch.dtype) -> Iterator[tuple[str, Step]]:
    """Sums of an array, by NCCL and in order; the results of both are compared."""
    world = dist.get_world_size()
    terms = torch.randn(megabytes * 2**20 // dtype.itemsize, device="cuda").to(dtype)
    part = torch.empty(len(terms) // world, dtype=dtype, device="cuda")
    dist.reduce_scatter_tensor(part, terms)
    tolerance = world * torch.finfo(dtype).eps
    torch.testing.assert_close(reduce_scatter(terms), part, rtol=tolerance, atol=tolerance * part.abs().max().item())
    yield "reduce_scatter, NCCL", lambda: dist.reduce_scatter_tensor(part, terms)
    yield "reduce_scatter, ordered", lambda: reduce_scatter(terms)
    terms = terms / world  # sums of sums stay finite
    yield "all_reduce, NCCL", lambda: dist.all_reduce(terms.div_(world))
    yield "all_reduce, ordered", lambda: all_reduce_(terms.div_(world))


def training(how: str) -> Step:
    """A training step whose gradients are summed in one way."""
    shape, rank, world = MODELS[MODEL], dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    # FSDP2 shards parameters of one dtype together
    dtype = torch.float32 if how.startswith("FSDP2") else torch.bfloat16
    model: nn.Module = LanguageModel(shape.config, device="cuda", dtype=dtype)  # type: ignore[arg-type]
    called, total, slots = model, None, Slots(world, world, rank)
    if how.startswith("DDP"):
        called = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        if how == "DDP, ordered":
            called.register_comm_hook(None, ordered_hook)
    elif how.startswith("FSDP2"):
        mesh = init_device_mesh("cuda", (world,))
        for block in model.backbone.layers:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if how == "FSDP2, ordered":
            order_fsdp(model, slots)
    else:
        total = SlotSum(model.parameters(), slots)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(VOCABULARY, (world, shape.batch, shape.time), device="cuda")[rank]

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = next_token_loss(called(tokens), tokens)
        (loss / (world if "ordered" in how and not how.startswith("DDP") else 1)).backward()
        if total is not None:
            total.take()
            total.finish()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def in_slots(count: int) -> Step:
    """A training step on one GPU, of a batch that is divided into slots."""
    shape = MODELS[MODEL]
    model = LanguageModel(shape.config, device="cuda", dtype=torch.bfloat16)  # type: ignore[arg-type]
    total = SlotSum(model.parameters(), Slots(count))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    slots = torch.randint(VOCABULARY, (shape.batch, shape.time), device="cuda").chunk(count)

    def step() -> None:
        for tokens in slots:
            with torch.autocast("cuda", torch.bfloat16):
                loss = next_token_loss(model(tokens), tokens)
            (loss / count).backward()
            total.take()
        total.finish()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def in_turns(calls: Mapping[str, Step], count: int) -> dict[str, float]:
    """Milliseconds of each, the slowest rank's; the median of rounds in which all take turns."""
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            dist.barrier()
            start = time.perf_counter()
            for _ in range(count):
                call()
            torch.cuda.synchronize()
            took = torch.tensor((time.perf_counter() - start) / count * 1000, device="cuda")
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            times[name].append(took.item())
    return {name: statistics.median(found) for name, found in times.items()}


def report(case: str, found: Mapping[str, float], folder: Path | None, dtype: str) -> None:
    """Add rows, and print them."""
    gpu = torch.cuda.get_device_name()
    for impl, ms in found.items():
        row = {"op": "distributed", "case": case, "dtype": dtype, "impl": impl, "gpus": dist.get_world_size()}
        row |= {"ms": round(ms, 4), "gpu": gpu, "versions": versions(("torch", "triton"))}
        if dist.get_rank() == 0:
            add(row, (folder or RESULTS / folder_name(gpu)) / "distributed.jsonl", gpu)
            print(f"{case:20} {dtype:9} {impl:26} {ms:9.3f} ms", flush=True)


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if dist.get_world_size() == 1:
        report(
            MODEL, in_turns({f"slots, {count}": in_slots(count) for count in (1, 2, 4, 8)}, STEPS), folder, "bfloat16"
        )
        dist.destroy_process_group()
        return
    for megabytes in SIZES:
        for dtype in (torch.bfloat16, torch.float32):
            found = in_turns(dict(reductions(megabytes, dtype)), CALLS)
            report(f"{megabytes} MB", found, folder, str(dtype).removeprefix("torch."))
    for kind in (("DDP", "DDP, ordered", "SlotSum, ordered"), ("FSDP2", "FSDP2, ordered")):
        report(MODEL, in_turns({how: training(how) for how in kind}, STEPS), folder, "bfloat16")
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
