"""The distance between selective_scan's saved states: bytes a channel and step against time, on a GPU.

python benchmarks/tune_selective_scan_chunk.py [case]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from retrograd.bench.results import Row
from retrograd.bench.run import run
from retrograd.ops.infos import info
from retrograd.ops.selective_scan.op import Spec

CHUNKS = (8, 16, 32, 64, 128)


def main() -> None:
    op = info("selective_scan")
    case = op.case(sys.argv[1] if len(sys.argv) > 1 else "B8_D2048_T2048_N16")
    print(f"{case.name}: steps between kept states, bytes a channel and step, ms forward, backward, both")
    for chunk in CHUNKS:
        times: dict[str, float] = {}

        def note(row: Row, times: dict[str, float] = times) -> None:
            if row.case == case.name and row.device_ms:
                times[row.pass_] = row.device_ms

        kept = type(f"Every{chunk}", (Spec,), {"chunk": chunk})
        try:
            run(op.variant(call=kept), [case], [], note, lambda text: None)
            fwd, bwd = times["fwd"], times["bwd"]
            print(f"{chunk:4d}  {4 * case.shape['N'] / chunk:5.2f}  {fwd:.3f}  {bwd:.3f}  {fwd + bwd:.3f}", flush=True)
        except Exception as error:
            print(f"{chunk:4d}  does not run: {str(error).splitlines()[0][:90]}", flush=True)


if __name__ == "__main__":
    main()
