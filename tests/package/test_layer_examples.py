"""The examples of layers for equinox and flax train."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.docs
@pytest.mark.parametrize(("file", "package"), [("equinox_layers.py", "equinox"), ("nnx_layers.py", "flax")])
def test_the_loss_falls(file: str, package: str) -> None:
    pytest.importorskip(package, reason=f"the package {package} is not installed")
    run = subprocess.run([sys.executable, str(EXAMPLES / file)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", run.stdout)]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.7 * losses[0]
