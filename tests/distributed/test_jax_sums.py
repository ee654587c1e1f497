"""Sums over the devices of a mesh in JAX have the same bits on 1, 2 and 4."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_gradients_have_the_same_bits_on_one_two_and_four_devices() -> None:
    pytest.importorskip("jax", reason="needs jax")
    pytest.importorskip("optax", reason="needs optax")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    environment["PYTHONPATH"] = str(TESTS)
    script = TESTS / "distributed" / "jax_four_devices.py"
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
