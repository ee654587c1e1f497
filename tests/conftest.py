"""Seeds, and which tests are collected in a process whose kernels are interpreted."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

# Both frameworks share one GPU in these tests.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="draw inputs from this seed; a fresh one by default")
    parser.addoption("--fuzz", type=int, default=300, help="about how many calls tests/fuzz makes in all")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Where inputs are drawn from: fresh in every test, and shown where a test fails."""
    given: int | None = request.config.getoption("--seed")
    drawn = random.SystemRandom().randrange(10**6) if given is None else given
    print(f"inputs drawn from --seed {drawn}")
    return drawn


@pytest.fixture
def large_arrays() -> Iterator[None]:
    """For tests of arrays of many gigabytes: the memory goes back, since other processes may share the GPU."""
    import torch

    yield
    torch.cuda.empty_cache()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """With TRITON_INTERPRET=1 a kernel is a Python function, so nothing but tests/interpreter makes sense."""
    if os.environ.get("TRITON_INTERPRET") == "1" and collection_path.suffix == ".py":
        return "interpreter" not in collection_path.parts or None
    return None
