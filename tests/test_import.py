"""What `import retrograd` costs, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys

MOST_SECONDS = 0.3

SCRIPT = """
import json, sys, time
import torch
start = time.perf_counter()
import retrograd
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules), "cuda": torch.cuda.is_initialized()}))
"""


def imported() -> dict[str, object]:
    """What a fresh process reports."""
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    report: dict[str, object] = json.loads(result.stdout)
    return report


def test_import_takes_a_moment_beside_that_of_torch() -> None:
    seconds = [imported()["seconds"] for _ in range(3)]
    assert min(seconds) < MOST_SECONDS, seconds  # type: ignore[type-var,operator]


def test_import_brings_neither_jax_nor_triton_nor_cuda() -> None:
    report = imported()
    brought = {name.split(".")[0] for name in report["modules"]}  # type: ignore[attr-defined]
    assert not brought & {"jax", "jaxlib", "triton", "typer", "rich"}
    assert report["cuda"] is False
