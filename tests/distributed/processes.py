"""Runs functions of a file in several processes, which talk by gloo, or by NCCL with a GPU each.

NCCL takes no two processes on one GPU. Such talk by gloo, through copies in the host's memory. All are forked from one
process that has imported torch, which takes seconds, and has computed nothing.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

SECONDS = {"cpu": 120, "cuda": 400}  # on a GPU kernels are compiled first
IMPORTED = ("torch.distributed.fsdp", "torch.distributed.tensor", "retrograd.train", "retrograd.distributed")
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
    environment = {"CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8")}
    ended = forked(
        [partial(work, functions, rank, world, folder, device, shared) for rank in range(world)],
        [environment] * world,
        folder,
        SECONDS[device],
    )
    if any(status for status, _ in ended):
        said = (f"rank {rank}, status {status}: {errors}" for rank, (status, errors) in enumerate(ended))
        raise RuntimeError("\n".join(said))
    by_rank = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]
    return [list(found) for found in zip(*by_rank, strict=True)]


def forked(
    bodies: Sequence[Callable[[], int]], environments: Sequence[dict[str, str]], folder: Path, seconds: float
) -> list[tuple[int, str]]:
    """Exit status and errors of processes, of which each runs a body with some variables of its own.

    Raises:
        TimeoutError: one of them did not end in as many seconds.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    files = [folder / f"errors {rank}.txt" for rank in range(len(bodies))]
    running = [
        context.Process(target=main, args=(body, own | environment, file))
        for body, environment, file in zip(bodies, environments, files, strict=True)
    ]
    end = time.monotonic() + seconds
    for file in files:
        file.touch()
    for process in running:
        process.start()
    try:
        for process in running:
            process.join(max(0, end - time.monotonic()))
        late = [rank for rank, process in enumerate(running) if process.exitcode is None]
    finally:
        for process in running:
            process.kill()
    errors = [file.read_text() for file in files]
    if late:
        raise TimeoutError(f"ranks {late} did not end in {seconds} s; the errors of all: {errors}")
    return [(process.exitcode or 0, error) for process, error in zip(running, errors, strict=True)]


def main(body: Callable[[], int], environment: dict[str, str], errors: Path) -> None:
    """One of the processes."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
    faulthandler.enable()
    try:
        status = body()
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Without Python's own end: a thread of gloo that frees a tensor during it stops the process with an error.
    os._exit(status)


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


def work(functions: Sequence[str], rank: int, world: int, folder: Path, device: str, shared: bool) -> int:
    """What one of the processes does."""
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
    return 0
