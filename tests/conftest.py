"""Seeds of inputs, and the tests that are collected in a process whose kernels are interpreted."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Processes side by side are distributed over the GPUs, where there are several.
GPUS = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
if GPUS > 1 and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(int(worker.removeprefix("gw")) % GPUS))
# Both frameworks share one GPU in these tests.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Where an operation was called from is not written into the programs that XLA compiles, which takes time.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
# As in jax's own tests, it is an error to leave it to JAX to add axes or to convert dtypes.
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of the inputs; a new one for every test by default")
    parser.addoption("--fuzz", type=int, default=300, help="approximate number of calls in tests/fuzz")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of the inputs: a new one for every test, printed so that a failure shows it."""
    option: int | None = request.config.getoption("--seed")
    number = random.SystemRandom().randrange(10**6) if option is None else option
    print(f"inputs drawn from --seed {number}")
    return number


@pytest.fixture
def large_arrays() -> Iterator[None]:
    """For tests with arrays of many gigabytes: free the memory, since other processes may share the GPU."""
    import torch

    yield
    torch.cuda.empty_cache()


def pytest_collection_finish() -> None:
    """Leave what is there to the end of the process out of garbage collection, which then looks at the rest seldom."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """With TRITON_INTERPRET=1 kernels are Python functions, so only folders named `interpreter` are collected."""
    if INTERPRETED and collection_path.suffix == ".py":
        return "interpreter" not in collection_path.parts or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in the interpreter are skipped elsewhere.

    Those under compute-sanitizer come first: they take minutes, and one process would be left with them.
    """
    items.sort(key=lambda item: "test_sanitizers_gpu.py" not in item.nodeid)
    for item in items:
        if "interpreter" in item.path.parts:
            item.add_marker(pytest.mark.interpreter)
            if not INTERPRETED:
                item.add_marker(pytest.mark.skip(reason="run apart: TRITON_INTERPRET=1 pytest"))


@pytest.fixture(autouse=True)
def _kernels_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not INTERPRETED:
        yield
        return
    from checks.interpreter import interpreted

    from retrograd.ops.linear_scan.triton import plan as linear_scan

    # Tiles of 32 steps instead of 256 are interpreted faster, and small cases then have several.
    for name in ("forward", "backward"):
        monkeypatch.setattr(linear_scan, name, lambda spec: linear_scan.Tile(steps=4, levels=3, channels=32))
    with interpreted():
        yield


@pytest.fixture
def jax_promotes() -> Iterator[None]:
    """For the code of others: JAX adds axes and converts dtypes, as it does by default."""
    import jax

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
