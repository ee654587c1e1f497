"""The tutorials train: each in a few steps."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from blocks import ROOT

pytestmark = pytest.mark.docs
PACKAGES = {"finetune_mamba2": "transformers", "train_hybrid": "torch", "train_nnx": "flax", "train_t5": "transformers"}


@pytest.mark.parametrize("name", PACKAGES)
def test_its_loss_falls(name: str) -> None:
    pytest.importorskip(PACKAGES[name], reason=f"the package {PACKAGES[name]} is not installed")
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--steps", "12"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}  # not the tests'
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", run.stdout)]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.3
