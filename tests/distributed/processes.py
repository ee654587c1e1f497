"""Runs functions of a file in several processes, which talk by gloo, or by NCCL with a GPU each.

NCCL takes no two processes on one GPU. Such talk by gloo, through copies in the host's memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

SECONDS = {"cpu": 120, "cuda": 400}  # on a GPU kernels are compiled first
MESSAGES = ("all_gather", "all_gather_into_tensor", "all_gather_single", "all_to_all_single", "recv", "send")


def run(function: str, world: int, folder: Path, device: str = "cpu") -> list[Any]:
    """What `function(rank, world, device)`, named `module.function`, returned in each of `world` processes.

    Raises:
        RuntimeError: one of them failed; with the errors of all.
    """
    (found,) = run_each([function], world, folder, device)
    return found


def run_each(
    functions: Sequence[str], world: int, folder: Path, device: str = "cpu", shared: bool = False
) -> list[list[Any]]:
    """What `run` returns, of each function; the processes start once, which takes them seconds.

    With `shared` they have one GPU together.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    running = [
        subprocess.Popen(
            [sys.executable, __file__, ",".join(functions), str(rank), str(world), str(folder), device, str(shared)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]
    try:
        errors = [process.communicate(timeout=SECONDS[device])[1] for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        raise RuntimeError("\n".join(f"rank {rank}: {error}" for rank, error in enumerate(errors)))
    by_rank = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]
    return [list(found) for found in zip(*by_rank, strict=True)]


def needs_gpus(count: int) -> None:
    """Skip a test where there are fewer."""
    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPUs, there are {torch.cuda.device_count()}")


def through_the_host(message: Callable[..., Any]) -> Callable[..., Any]:
    """A message of copies in the host's memory, which are copied back."""

    def call(*args: Any, **options: Any) -> Any:
        moved: list[tuple[Tensor, Tensor]] = []

        def copied(x: Tensor) -> Tensor:
            moved.append((x, x.cpu()))
            return moved[-1][1]

        done = message(*tree_map_only(Tensor, copied, args), **tree_map_only(Tensor, copied, options))
        for x, copy in moved:
            x.copy_(copy)
        return done

    return call


def refused(calls: Iterable[Callable[[], Any]]) -> list[str]:
    """The messages of the ValueErrors that calls raise; "nothing" for one that raises none."""
    messages = []
    for call in calls:
        try:
            call()
        except ValueError as error:
            messages.append(str(error))
        else:
            messages.append("nothing")
    return messages


def main(functions: Sequence[str], rank: int, world: int, folder: Path, device: str, shared: bool) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if device == "cuda":
        torch.cuda.set_device(0 if shared else rank)
    if shared:
        for name in MESSAGES:
            if hasattr(dist, name):
                setattr(dist, name, through_the_host(getattr(dist, name)))
    store = f"file://{folder / 'store'}"
    backend = "nccl" if device == "cuda" and not shared else "gloo"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world)
    found = []
    for function in functions:
        module, _, name = function.rpartition(".")
        found.append(getattr(import_module(module), name)(rank, world, device))
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()  # no process leaves while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main(
        sys.argv[1].split(","),
        int(sys.argv[2]),
        int(sys.argv[3]),
        Path(sys.argv[4]),
        sys.argv[5],
        sys.argv[6] == "True",
    )
    # Without Python's own end: a thread of gloo that frees a tensor during it stops the process with an error.
    os._exit(0)
