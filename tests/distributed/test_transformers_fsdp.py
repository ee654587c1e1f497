"""Models of transformers on our kernels train under FSDP2, with the losses of one process to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run
from transformers_fsdp import COUNT, STEPS

pytest.importorskip("transformers", reason="needs transformers")


def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    found = run("transformers_fsdp.alone_and_with_others", 2, tmp_path)
    (alone, _), (first, second) = ([rank[which] for rank in found] for which in ("alone", "own"))
    for name in ("mamba2", "llama"):
        by_step = [alone[name][COUNT * step : COUNT * (step + 1)] for step in range(STEPS)]
        half = COUNT // 2
        assert first[name] == [loss for step in by_step for loss in step[:half]]
        assert second[name] == [loss for step in by_step for loss in step[half:]]
        assert sum(by_step[-1]) < sum(by_step[0])
