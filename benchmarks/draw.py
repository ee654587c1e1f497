"""Draws the pictures of results again from the rows: `python3 benchmarks/draw.py [FOLDER ...]`.

A folder is one of benchmarks/results; all of them by default.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import draw_generation
import draw_models
import generate
import models

from retrograd.bench.drawing import draw_file
from retrograd.ops.names import NAMES

RESULTS = Path(__file__).resolve().parent / "results"
FILES = (*NAMES, "attention_lengths", "ssd_lengths")  # of rows that are drawn


def main() -> int:
    for folder in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(RESULTS.iterdir()):
        for path in filter(Path.exists, (folder / f"{name}.jsonl" for name in FILES)):
            draw_file(path)
        for script, drawn in ((models, draw_models), (generate, draw_generation)):
            if (folder / script.ROWS).exists():
                drawn.draw(folder / script.ROWS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
