"""The time of `import retrograd`, and the modules that it does not import."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import retrograd

MOST_SECONDS = 0.3  # of one core

IMPORT = """
import json, sys, time
import torch
start = time.process_time()
import retrograd
seconds = time.process_time() - start
found = {"seconds": seconds, "file": retrograd.__file__, "modules": sorted(sys.modules)}
print(json.dumps(found | {"cuda": torch.cuda.is_initialized()}))
"""

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # as where it is not installed
import jax, torch, retrograd.jax
from retrograd import nn
model = nn.LanguageModel(nn.MambaConfig(d_model=8, n_layer=1, vocab_size=16))
model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
a = torch.rand(1, 4, 2, requires_grad=True)
retrograd.linear_scan(a, a).sum().backward()
jax.grad(lambda x: retrograd.jax.rms_norm(x).sum())(jax.numpy.ones((2, 4)))
from retrograd.ops.infos import NAMES, info
for name in NAMES:  # as `retrograd check` and `bench` load them
    info(name)
from retrograd.cli.info import info
info()
"""


def run(script: str, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script in a new process, in a folder."""
    command = [sys.executable, "-c", script, *arguments]  # it imports what its folder has, before what is installed
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a process that imported torch and then retrograd, with the bytecode that an installation has."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(Path(retrograd.__file__).parent, folder / "retrograd")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(folder)], check=True)
    report: dict[str, Any] = json.loads(run(IMPORT, folder=folder).stdout)
    assert Path(report["file"]).is_relative_to(folder)
    return report


def test_import_takes_a_moment_beside_that_of_torch(imported: dict[str, Any]) -> None:
    assert imported["seconds"] < MOST_SECONDS


def test_import_brings_neither_jax_nor_triton_nor_cuda(imported: dict[str, Any]) -> None:
    brought = {name.split(".")[0] for name in imported["modules"]}
    assert not brought & {"jax", "jaxlib", "triton", "typer", "rich"}
    assert imported["cuda"] is False


def test_where_triton_is_not_installed_both_frameworks_take_the_portable_path() -> None:
    assert "portable" in run(WITHOUT_TRITON).stdout


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as where it is not installed
import jax, retrograd, retrograd.jax
from retrograd.jax import nn
assert not [name for name in sys.modules if name.startswith("torch.")]
x = jax.numpy.ones((1, 4, 2))
print(jax.grad(lambda x: retrograd.jax.linear_scan(x, x).sum())(x).shape)
config = nn.MambaConfig(d_model=8, n_layer=1, vocab_size=16)
params = nn.init(jax.random.key(0), config)
print(nn.language_model(params, config, jax.numpy.zeros((1, 4), "int32")).shape)
print(retrograd.__version__)
from importlib import import_module
from retrograd.cli import main
for use in (lambda: retrograd.rms_norm, *(lambda name=name: import_module(name) for name in sys.argv[1:])):
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
print(main())
"""
FOR_TORCH = ("retrograd.nn", "retrograd.compat", "retrograd.compat.liger", "retrograd.train")


def test_the_face_for_jax_needs_no_torch_and_that_for_pytorch_says_what_to_install() -> None:
    ran = run(WITHOUT_TORCH, *FOR_TORCH)
    lines = ran.stdout.splitlines()
    assert lines[0] == "(1, 4, 2)"
    assert lines[1] == "(1, 4, 16)"
    parts = ["retrograd", "retrograd.nn", "retrograd.compat", "retrograd.compat", "retrograd.train"]
    assert lines[3:-1] == [f'{name} needs torch: pip install "retrograd[torch]"' for name in parts]
    assert lines[-1] == "2"
    assert ran.stderr.splitlines()[-1] == 'retrograd: torch is not installed; pip install "retrograd[cli]"'
