"""Times one query of each sequence over caches of keys and values, on Hopper: `walk`, and the kernels for long ones.

python benchmarks/tune_attention_step.py > benchmarks/results/<gpu>/tuning/attention_step.txt. `LONG` of the op's
`hopper/query/plan.py` is taken from its table: microseconds of a query, and the rate at which caches are read, GB/s. A
graph has queries over different caches, more than the L2 holds.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from in_graph import microseconds

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from retrograd.core.torch.op import by_kernels
from retrograd.ops.attention.torch_step import QUERY

FEWEST_BYTES = 2**28  # of the caches of a graph
SLOTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
CALLS = ((1, 16, 16, 64), (1, 32, 8, 128), (4, 32, 8, 128), (8, 32, 8, 128), (1, 8, 1, 128))  # B, H, G, D


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    ops = [replace(QUERY, replan=partial(replace, structure=structure)) for structure in ("walk", "blocks")]
    for B, H, G, D in CALLS:
        print(f"B {B}, H {H}, G {G}, D {D}: slots, us and GB/s of walk, of blocks")
        for slots in SLOTS:
            size = 2 * 2 * B * slots * G * D
            caches = [
                tuple(torch.randn(B, slots, G, D, device="cuda").bfloat16() for _ in range(2))
                for _ in range(max(4, min(64, FEWEST_BYTES // size)))
            ]
            q = torch.randn(B, H, D, device="cuda").bfloat16()
            after = torch.full((B,), slots, device="cuda", dtype=torch.int32)
            found = []
            for op in ops:
                options = (None, None, None)
                us = microseconds([partial(by_kernels, op, (q, *cache, after), options) for cache in caches])
                found.append(f"{us:8.2f} {size / us / 1000:7.0f}")
            print(f"{slots:8}", *found, sep="  ", flush=True)


if __name__ == "__main__":
    main()
