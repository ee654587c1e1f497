"""Times a tiny Mamba of transformers with its own functions and with retrograd's, on this machine's CPU.

    python benchmarks/compat_cpu.py

Prints milliseconds of forward and of forward and backward, medians of a few runs, each side in its own process,
and their ratio; writes them to benchmarks/results/cpu/compat.txt.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from wall_clock import median

BATCH, TIME, HIDDEN, LAYERS, VOCABULARY = 2, 512, 256, 4, 1000
RUNS = {"theirs": 3, "ours": 7}  # a run of theirs takes a minute
RESULTS = Path(__file__).parent / "results" / "cpu" / "compat.txt"


def measure(side: str) -> dict[str, float]:
    """Milliseconds of one side, in this process."""
    if side == "ours":
        import retrograd.compat

        retrograd.compat.install()
    import torch
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS)
    model = MambaForCausalLM(config).train()
    ids = torch.randint(VOCABULARY, (BATCH, TIME))

    def forward(ids: torch.Tensor = ids) -> Any:
        return model(ids, labels=ids).loss

    def both(ids: torch.Tensor = ids) -> None:
        model.zero_grad()
        forward(ids).backward()

    both(ids[:, :16])  # one-time work of the first run
    return {"forward": median(forward, RUNS[side]), "both": median(both, RUNS[side])}


def main() -> None:
    import torch
    import transformers

    found = []
    for side in ("theirs", "ours"):
        run = subprocess.run([sys.executable, __file__, side], capture_output=True, text=True, check=True)
        found.append(json.loads(run.stdout.splitlines()[-1]))
    theirs, ours = found
    lines = [
        f"benchmarks/compat_cpu.py on {os.cpu_count()} cores: Mamba of transformers, training, B{BATCH} T{TIME} hidden "
        f"{HIDDEN}, {LAYERS} layers, N16, fp32; torch {torch.__version__}, transformers {transformers.__version__}",
    ]
    for which in ("forward", "both"):
        a, b = theirs[which], ours[which]
        lines.append(f"{which:9} transformers {a:8.1f} ms   retrograd {b:7.1f} ms   ratio {a / b:5.1f}")
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
