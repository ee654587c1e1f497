"""JAX on several devices, in processes of their own: sums, and sequences that are divided over the devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import needs_gpus

TESTS = Path(__file__).parents[1]
PATHS = (TESTS, TESTS.parent)


def run(script: str, *arguments: str) -> None:
    pytest.importorskip("jax", reason="needs jax")
    pytest.importorskip("optax", reason="needs optax")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    environment["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # as in conftest.py
    environment["PYTHONPATH"] = os.pathsep.join(map(str, PATHS))
    file = TESTS / "distributed" / f"{script}.py"
    run = subprocess.run([sys.executable, str(file), *arguments], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("script", ["jax_sums", pytest.param("jax_context", marks=pytest.mark.slow), "jax_divided"])
def test_several_devices_have_what_one_has(script: str) -> None:
    run(script)


@pytest.mark.slow
def test_so_they_have_with_second_derivatives_states_that_decay_soon_and_whole_models() -> None:
    run("jax_context", "slow")


@pytest.mark.gpu
def test_several_gpus_have_what_one_has() -> None:
    needs_gpus(2)
    run("jax_gpus")
