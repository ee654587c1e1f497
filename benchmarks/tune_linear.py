"""Times the tiles of linear's kernels for Hopper on a GPU: microseconds of a forward pass, in a CUDA graph.

python benchmarks/tune_linear.py > benchmarks/results/<gpu>/tuning/linear.txt. The op's `hopper/plan.py` is written from
its table. A graph has calls on different weights, more than the L2 holds; up to 64 rows they read weights early, as
steps of generation do. A column is a shape N x K; the best tile has a star.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from in_graph import microseconds

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from retrograd.core.torch.launch import steady_weights
from retrograd.ops.infos import info
from retrograd.ops.linear.hopper.plan import Few, Plan, Tile

SHAPES = (
    (1024, 1024), (1024, 2048), (1024, 4096), (2048, 1024), (2048, 2048), (4096, 1024), (4096, 4096), (8192, 2048),
    (50304, 1024),
)  # fmt: skip
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
FEWEST_BYTES = 2**28  # of the weights of a graph
TILES = (
    Tile(128, 256, 64, 4),
    Tile(256, 128, 64, 4),
    Tile(128, 128, 64, 6),
    Tile(128, 128, 128, 3),
    Tile(128, 64, 64, 8),
    Tile(128, 64, 128, 4),
    Tile(128, 32, 128, 5),
)
FEWS = ((64, 4), (64, 8), (128, 2), (128, 4), (128, 8))  # terms of a step, stages


class Choice(NamedTuple):
    """What computes y, as a plan that is to be changed by `replace`."""

    few: Few | None
    rows: Tile | None

    def __str__(self) -> str:
        found = self.few or self.rows
        sizes = [getattr(found, name) for name in ("rows", "columns", "terms", "stages") if hasattr(found, name)]
        return ("few " if self.few else "tile ") + " x ".join(map(str, sizes))


def choices(rows: int) -> list[Choice]:
    """The candidates for a number of rows."""
    least = max(8, rows // 16)
    few = [few for few in (8, 16, 32, 64, 128) if least <= few < max(9, 2 * rows)] if rows <= 512 else []
    found = [Choice(Few(few, *steps), None) for few in few for steps in FEWS if few * steps[0] * steps[1] <= 2**16]
    return found + ([Choice(None, tile) for tile in TILES] if rows >= 64 else [])


def planned(choice: Choice) -> Any:
    """The op with this choice."""

    def replan(plan: Plan) -> Plan:
        return replace(plan, few=choice.few, rows=choice.rows or plan.rows)

    return info("linear").variant(only="hopper", replan=replan).torch


def timed(call: Any, x: torch.Tensor, weights: torch.Tensor) -> float:
    """Microseconds of a call with one weight."""
    with torch.no_grad(), steady_weights() if len(x) <= 64 else nullcontext():
        return microseconds([partial(call, x=x, weight=weight) for weight in weights])


def main() -> None:
    torch.manual_seed(0)
    for rows in [int(given) for given in sys.argv[1:]] or ROWS:
        table: dict[str, list[float]] = {}
        for N, K in SHAPES:
            weights = torch.randn(max(4, FEWEST_BYTES // (2 * N * K)), N, K, device="cuda").bfloat16() / K**0.5
            x = torch.randn(rows, K, device="cuda").bfloat16()
            table.setdefault("cuBLAS", []).append(timed(lambda x, weight: F.linear(x, weight), x, weights))
            for choice in choices(rows):
                try:
                    found = timed(planned(choice), x, weights)
                except Exception:
                    found = float("nan")
                table.setdefault(str(choice), []).append(found)
        print(f"{rows} rows".ljust(24), *(f"{N}x{K}".rjust(10) for N, K in SHAPES))
        best = [min(each) for each in zip(*list(table.values())[1:], strict=True)]
        for name, times in table.items():
            cells = (f"{us:.2f}{'*' if us == least else ' '}" for us, least in zip(times, best, strict=True))
            print(name.ljust(24), *(cell.rjust(10) for cell in cells), flush=True)


if __name__ == "__main__":
    main()
