"""benchmarks/sustained.py reads the clock and the power while calls run, and adds their medians to a row."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from retrograd.bench.results import Row

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sustained = import_module("sustained")
Sample = sustained.Sample

ROW = Row("attention", "B1", {"B": 1}, "bfloat16", "fwd", "retrograd", "torch", 2.0, None, 1.0, "flops", "a GPU")


def test_a_row_has_the_medians_of_its_samples() -> None:
    samples = [Sample(0.1, 1500.0, 600.0), Sample(0.2, 1600.0, 700.0), Sample(0.3, 1980.0, 650.0)]
    found = json.loads(sustained.with_samples(ROW, samples))
    assert (found["mhz"], found["watts"], found["joules"]) == (1600.0, 650.0, 1.3)
    assert found["timing"] == "sustained"
    assert found["device_ms"] == 2.0


def test_the_watch_reads_what_nvidia_smi_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\nwhile true; do echo '1755, 512.50'; sleep 0.01; done\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    start = time.perf_counter()
    watch = sustained.Watch("GPU-1")
    while len(watch.samples) < 3:
        time.sleep(0.01)
        assert time.perf_counter() - start < 60
    watch.close()
    end = time.perf_counter()
    first = watch.between(start, end)[0]
    assert (first.mhz, first.watts) == (1755.0, 512.5)
    assert not watch.between(end + 60, end + 61)
