"""Runs functions of a file in several processes, which talk by gloo, or by NCCL with a GPU each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = {"cpu": 120, "cuda": 400}  # on a GPU kernels are compiled first


def run(function: str, world: int, folder: Path, device: str = "cpu") -> list[Any]:
    """What `function(rank, world, device)`, named `module.function`, returned in each of `world` processes.

    Raises:
        RuntimeError: one of them failed; with the errors of all.
    """
    (found,) = run_each([function], world, folder, device)
    return found


def run_each(functions: Sequence[str], world: int, folder: Path, device: str = "cpu") -> list[list[Any]]:
    """What `run` returns, of each function; the processes start once, which takes them seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    running = [
        subprocess.Popen(
            [sys.executable, __file__, ",".join(functions), str(rank), str(world), str(folder), device],
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


def main(functions: Sequence[str], rank: int, world: int, folder: Path, device: str) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if device == "cuda":
        torch.cuda.set_device(rank)
    store = f"file://{folder / 'store'}"
    backend = {"cpu": "gloo", "cuda": "nccl"}[device]
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world)
    found = []
    for function in functions:
        module, _, name = function.rpartition(".")
        found.append(getattr(import_module(module), name)(rank, world, device))
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()  # no process leaves while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
    # Without Python's own end: a thread of gloo that frees a tensor during it stops the process with an error.
    os._exit(0)
