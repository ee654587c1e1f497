"""Builds the two archives and installs each into empty environments: `make packages`.

    python tests/installed.py PYTHON EXTRAS [PIP_ARGUMENT ...]

installs the wheel, and the wheel that pip builds from the source archive, with these extras into new environments of
that Python, and runs in each what the README begins with.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = """
import torch, retrograd
x = torch.randn(2, 16, 64, requires_grad=True)
retrograd.rms_norm(x, torch.ones(64)).sum().backward()
from retrograd.nn import LanguageModel, MambaConfig, generate
model = LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
list(generate(model, torch.randint(256, (1, 4)), 3))
print("torch", torch.__version__, tuple(x.grad.shape))
"""
JAX = """
import jax, jax.numpy as jnp, sys
from retrograd.jax import rms_norm, ssd
print("jax", jax.__version__, jax.grad(lambda x: rms_norm(x, jnp.ones(64)).sum())(jnp.ones((2, 16, 64))).shape)
"""
ALONE = """
import sys
assert not {beside} & {{name.split(".")[0] for name in sys.modules}}, "{beside} imported"
"""
PROGRAMS = {
    "torch": TORCH + ALONE.format(beside={"jax"}),
    "jax": JAX + ALONE.format(beside={"torch"}),
    "torch,jax": TORCH + JAX,
}


def main() -> None:
    """Build, install, run."""
    python, extras, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder) / "dist"
        subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", dist], cwd=ROOT, check=True)
        for archive in sorted(dist.iterdir()):
            environment = Path(folder) / archive.suffix
            subprocess.run([python, "-m", "venv", environment], check=True)
            pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--no-compile"]
            subprocess.run([*pip, *arguments, f"{archive}[{extras}]"], check=True)
            subprocess.run([str(environment / "bin" / "python"), "-c", PROGRAMS[extras]], cwd=folder, check=True)
            print(f"{archive.name}[{extras}] with {python}: works", flush=True)


if __name__ == "__main__":
    main()
