"""The kernel for the Hugging Face Hub on a GPU, in a process that has no retrograd."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hub_calls import ALONE, BUILD, CALLS, ENVIRONMENT, LOADERS, OWN_BITS, VARIANT, run

pytestmark = pytest.mark.gpu

BITS = """
kernel = load(sys.argv[1], "kernel")
torch.save([found(kernel)], sys.argv[2])
"""


def test_on_a_gpu_results_and_gradients_have_the_bits_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "DEVICE", "cuda")
    subprocess.run([sys.executable, BUILD, tmp_path / "retrograd"], check=True, env=ENVIRONMENT)
    run(ALONE + LOADERS + CALLS + BITS, tmp_path / "retrograd" / VARIANT, tmp_path / "kernel")
    run(CALLS + OWN_BITS, tmp_path / "own")
    (got,), (expected,) = torch.load(tmp_path / "kernel"), torch.load(tmp_path / "own")
    assert got.keys() == expected.keys()
    for op, results in expected.items():
        assert all(each.is_cuda and torch.equal(each, own) for each, own in zip(got[op], results, strict=True)), op
