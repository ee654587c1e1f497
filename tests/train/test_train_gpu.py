"""Training on a GPU: runs with one seed write the same checkpoint, also a run that was stopped and resumed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from train_runs import bits, go_on, train, write_text

pytestmark = pytest.mark.gpu
COMMAND = (sys.executable, "-c", "import sys; from retrograd.cli import main; sys.exit(main())")


def run(out: Path, name: str, *options: str) -> Path:
    """A run in a separate process, since cuBLAS reads its settings once."""
    text = write_text(out / "text.txt", words=200_000)
    arguments = ("--preset", "cpu", "--device", "cuda", "--steps", "20", "--data", text, "--out", out, "--name", name)
    command = [*COMMAND, "train", *map(str, arguments), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return out / name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_runs_with_one_seed_give_the_same_bits_on_a_gpu(tmp_path: Path, dtype: str) -> None:
    first, second = (run(tmp_path, name, "--dtype", dtype) for name in ("a", "b"))
    other = run(tmp_path, "c", "--dtype", dtype, "--seed", "1")
    assert bits(first) == bits(second)
    assert bits(first)[0] != bits(other)[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_that_was_stopped_ends_in_the_same_bits_on_a_gpu(tmp_path: Path, dtype: str) -> None:
    whole = run(tmp_path, "whole", "--dtype", dtype)
    stopped = run(tmp_path, "stopped", "--dtype", dtype)
    (stopped / "checkpoint").unlink()  # without it, the run has not begun
    train(go_on(stopped), stop_after=7)
    train(go_on(stopped))
    assert bits(stopped) == bits(whole)


def test_a_run_through_torch_compile_repeats_on_a_gpu(tmp_path: Path) -> None:
    first, second = (run(tmp_path, name, "--compile") for name in ("a", "b"))
    assert bits(first) == bits(second)
