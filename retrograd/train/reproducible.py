"""Settings of PyTorch and XLA that make two runs bitwise equal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic

XLA = "--xla_gpu_deterministic_ops=true"


@contextmanager
def reproducible(threads: int) -> Iterator[None]:
    """Use the frameworks' deterministic algorithms, and this many CPU threads in PyTorch.

    PyTorch's settings are restored at the end. On a GPU, enter it before the first matrix product: cuBLAS reads its
    workspace's size once, and XLA its flags.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if XLA not in (flags := os.environ.get("XLA_FLAGS", "")):
        os.environ["XLA_FLAGS"] = f"{flags} {XLA}".strip()
    fill = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    threads_before = torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # kernels write all that they read
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.set_num_threads(threads_before)
