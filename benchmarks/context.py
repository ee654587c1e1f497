"""Ops on sequences that are divided over GPUs: against one GPU with as many steps as each of them has.

    torchrun --nproc-per-node 2 benchmarks/context.py [RESULTS]

Forward and backward, bf16, one row, calls one after another; and a training step's forward and backward pass of some
layers of Mamba-2 370m. `scaling` is the time of one GPU, for as much work as one of several has, over theirs.

- "context, in turn": scans whose states reach far, of which one process after another computes its steps.
- "context, summaries": the same with `order="ranks"`.
- "torch's": PyTorch's context parallel, by cuDNN, with as many key heads as query heads.

For a causal mask the work is the number of pairs that are seen, so that attention of W times as many steps is W^2 times
as much work. Rows go to RESULTS/context.jsonl, by default in benchmarks/results/<gpu>.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from distributed import RESULTS, in_turns
from model_shapes import MODELS
from own_process import add
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import retrograd
from retrograd.bench.environment import folder_name, versions
from retrograd.distributed import ContextParallel, Layout
from retrograd.distributed.context import reach
from retrograd.nn import LanguageModel

STEPS, SHORT, OF_MODEL = 2**18, 2**16, 2**17  # of a GPU; of attention, of the model
CALLS, LONG_CALLS = 12, 3  # without waiting for them; of attention and of the model
MODEL, LAYERS, BYTES = "mamba2-370m", 8, 256
SCANS = ("linear_scan", "selective_scan", "ssd")


Way = tuple[str, float, Callable[[], Any]]  # name, work beside that of one GPU, step


class Call(NamedTuple):
    """A call of an op: of `steps` a GPU, arrays with time as their second axis, arrays without, options."""

    op: str
    steps: int
    arrays: Callable[[int], dict[str, Tensor]]
    rest: dict[str, Tensor]
    options: dict[str, Any]
    packed: int = 1  # sequences

    @property
    def case(self) -> str:
        """Its shape in words."""
        shapes = ", ".join(f"{name} {tuple(x.shape[2:])}" for name, x in self.arrays(1).items())
        return f"{self.steps} steps a GPU, {shapes}"


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers on the GPU."""
    return torch.randn(shape, device="cuda", dtype=dtype)


def calls() -> Iterator[Call]:
    """The shapes of a long sequence in models of 130m to 1.3b."""
    float32 = torch.float32
    weights = {"weight": drawn(2048, 4, dtype=float32), "bias": drawn(2048, dtype=float32)}
    yield Call("causal_conv1d", STEPS, lambda T: {"x": drawn(1, T, 2048)}, weights, {"activation": "silu"})
    yield Call("linear_scan", STEPS, lambda T: {"a": drawn(1, T, 2048).sigmoid(), "b": drawn(1, T, 2048)}, {}, {})
    yield Call(
        "selective_scan",
        STEPS,
        lambda T: {"x": drawn(1, T, 2048), "dt": drawn(1, T, 2048), "B": drawn(1, T, 16), "C": drawn(1, T, 16)},
        {"A": -drawn(2048, 16, dtype=float32).exp()},
        {"dt_softplus": True},
    )
    for heads, groups in ((24, 1), (24, 8), (64, 1)):
        yield Call(
            "ssd",
            STEPS,
            lambda T, heads=heads, groups=groups: {  # type: ignore[misc]
                "x": drawn(1, T, heads, 64),
                "dt": drawn(1, T, heads),
                "B": drawn(1, T, groups, 128),
                "C": drawn(1, T, groups, 128),
            },
            {"A": -drawn(heads, dtype=float32).exp()},
            {"dt_softplus": True},
        )
    for packed in (1, 4):
        yield Call(
            "attention",
            SHORT,
            lambda T: {"q": drawn(1, T, 16, 128), "k": drawn(1, T, 8, 128), "v": drawn(1, T, 8, 128)},
            {},
            {"causal": True},
            packed,
        )


def timed(call: Call, time: int, parallel: ContextParallel | None) -> Callable[[], Any]:
    """Forward and backward of `time` steps, or of this process's part of them."""
    whole = call.arrays(time if parallel is None else len(parallel.layout.own))
    arrays = {name: x.requires_grad_() for name, x in (whole | call.rest).items()}
    options: dict[str, Any] = dict(call.options)
    if parallel is not None:
        options["context"] = parallel
    elif call.packed > 1:
        bounds = torch.arange(call.packed + 1, device="cuda", dtype=torch.int32) * (time // call.packed)
        options |= {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds}
    function = getattr(retrograd, call.op)
    dy = torch.randn_like(function(**arrays, **options))

    def step() -> None:
        y = function(**arrays, **options)
        torch.autograd.grad(y, list(arrays.values()), dy)

    return step


def trained(parallel: ContextParallel | None) -> Callable[[], Any]:
    """Forward and backward of a model, on this process's part of a sequence."""
    model = LanguageModel(replace(MODELS[MODEL].config, n_layer=LAYERS, vocab_size=BYTES), device="cuda")  # type: ignore[type-var, arg-type]
    tokens = torch.randint(BYTES, (1, OF_MODEL), device="cuda")
    context = {} if parallel is None else {"context": parallel}

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens, **context)
        functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        model.zero_grad(set_to_none=True)

    return step


def far(step: Callable[[], Any], parallel: ContextParallel) -> Callable[[], Any]:
    """The step, if states reached too far to be known from few steps."""

    def call() -> None:
        forgotten, past = reach.FORGOTTEN, dict(parallel.past)
        reach.FORGOTTEN = reach.Logs(-math.inf, -math.inf)
        parallel.past.clear()
        step()
        reach.FORGOTTEN = forgotten
        parallel.past.update(past)

    return call


def torchs(call: Call, time: int, stack: ExitStack) -> Callable[[], Any]:
    """Forward and backward of this process's part, by PyTorch's own context parallel."""
    world = dist.get_world_size()
    _, _, H, D = call.arrays(1)["q"].shape
    q, k, v = (drawn(1, H, time // world, D).requires_grad_() for _ in range(3))
    dy = drawn(*q.shape)
    mesh, steps = init_device_mesh("cuda", (world,)), torch.zeros(1, time, device="cuda")
    stack.enter_context(context_parallel(mesh, buffers=[steps], buffer_seq_dims=[1], no_restore_buffers={steps}))

    def step() -> None:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch.autograd.grad(y, (q, k, v), dy)

    return step


def ways(call: Call, stack: ExitStack) -> Iterator[Way]:
    """(name, work beside that of one GPU, step) of each way."""
    world, rank = dist.get_world_size(), dist.get_rank()
    yield "one GPU", 1.0, timed(call, call.steps, None)
    time = call.steps * world
    bounds = None if call.packed == 1 else [time // call.packed * number for number in range(call.packed + 1)]
    work = float(world) if call.op == "attention" else 1.0
    layout = Layout.even(time, world, rank, bounds)
    parallel = ContextParallel(layout)
    divided = timed(call, time, parallel)
    yield "context", work, divided
    if call.op in SCANS:
        yield "context, in turn", work, far(divided, parallel)
        by_ranks = ContextParallel(layout, order="ranks")
        yield "context, summaries", work, far(timed(call, time, by_ranks), by_ranks)
    if call.op == "attention" and call.packed == 1:
        yield "torch's", work, torchs(call, time, stack)


def report(op: str, case: str, packed: int, named: Sequence[Way], count: int) -> None:
    """Time the ways in turns, add rows, and print them."""
    gpu = torch.cuda.get_device_name()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / folder_name(gpu)
    found = in_turns({name: step for name, _, step in named}, count)
    for name, work, _ in named:
        row = {"op": op, "case": case, "packed": packed, "impl": name, "gpus": dist.get_world_size()}
        row |= {"ms": round(found[name], 3), "scaling": round(found["one GPU"] * work / found[name], 3), "gpu": gpu}
        if dist.get_rank() == 0:
            add(row | {"versions": versions(("torch", "triton"))}, folder / "context.jsonl", gpu)
            print(f"{op:15} {case:70} {packed} packed  {name:16} {found[name]:9.3f} ms  {row['scaling']}", flush=True)


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    for call in calls():
        with ExitStack() as stack:
            report(call.op, call.case, call.packed, list(ways(call, stack)), CALLS if call.op in SCANS else LONG_CALLS)
        torch.cuda.empty_cache()
    world, rank = dist.get_world_size(), dist.get_rank()
    parallel = ContextParallel(Layout.even(OF_MODEL * world, world, rank))
    both = [("one GPU", 1.0, trained(None)), ("context", 1.0, trained(parallel))]
    report("model", f"{OF_MODEL} steps a GPU, {LAYERS} layers of {MODEL}", 1, both, LONG_CALLS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
