"""Scripts for processes that run the kernel for the Hugging Face Hub, and the package, on the same calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "hub" / "build.py"
VARIANT = Path("build", "torch-universal")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

# Refuses what the kernel must not need.
ALONE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("retrograd", "jaxtyping", "jax"):
            raise ImportError(f"{name} is refused")

sys.meta_path.insert(0, Refuse())
"""
LOADERS = """
import importlib.util
from pathlib import Path

def load(variant, name):
    spec = importlib.util.spec_from_file_location(name, Path(variant) / "__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""
CALLS = """
import os, torch

DEVICE = os.environ.get("DEVICE", "cpu")

def found(module):
    "Results and gradients of a call of each op, forward, backward."
    torch.manual_seed(0)
    drawn = lambda *shape: torch.randn(shape).to(DEVICE)
    calls = {
        "rms_norm": ({"x": drawn(2, 70, 8), "weight": drawn(8), "gate": drawn(2, 70, 8)}, {"eps": 1e-5}),
        "linear_scan": ({"a": drawn(2, 70, 8).sigmoid(), "b": drawn(2, 70, 8)}, {}),
        "causal_conv1d": ({"x": drawn(2, 70, 8), "weight": drawn(8, 4), "bias": drawn(8)}, {"activation": "silu"}),
        "selective_scan": (
            {"x": drawn(2, 70, 8), "dt": drawn(2, 70, 8), "A": -drawn(8, 4).exp(), "B": drawn(2, 70, 4),
             "C": drawn(2, 70, 4), "D": drawn(8), "z": drawn(2, 70, 8)},
            {"dt_softplus": True},
        ),
        "ssd": (
            {"x": drawn(2, 70, 4, 8), "dt": drawn(2, 70, 4), "A": -drawn(4).exp(), "B": drawn(2, 70, 2, 4),
             "C": drawn(2, 70, 2, 4), "D": drawn(4)},
            {"dt_softplus": True},
        ),
    }
    results = {}
    for name, (arrays, options) in calls.items():
        for array in arrays.values():
            array.requires_grad_()
        y = getattr(module, name)(**arrays, **options)
        gradients = torch.autograd.grad(y.square().sum(), list(arrays.values()))
        results[name] = [y.detach(), *gradients]
    return results
"""

OWN_BITS = "import sys, retrograd\ntorch.save([found(retrograd)], sys.argv[1])"


def run(script: str, *arguments: object) -> str:
    """What a script prints in a process of its own."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
