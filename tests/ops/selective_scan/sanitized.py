"""The calls of selective_scan under the sanitizers, which come to every kernel."""

from __future__ import annotations

from retrograd.opinfo.cases import Case
from retrograd.ops.selective_scan.cases import ALL, MAMBA, case

NAMED = (
    "mamba_fp32",
    "most_states",
    "packed",
    "constant_B",
)
# The Gluon kernels of selective_scan, in spans and on whole sequences, with enough chunks to refill every buffer.
MORE: list[Case] = [
    case("gluon_8", (1, 70, 128, 8), given={"z"}, dtype="float16", return_final_state=True),
    case("gluon_16", (1, 140, 64, 16), given=MAMBA),
    case("gluon_16_groups", (1, 70, 128, 16), groups=2, dtype="float32", **ALL),
    case("gluon_32", (1, 200, 32, 32), given=MAMBA),
    case("gluon_64", (1, 270, 32, 64), **ALL),
    case("gluon_packed", (1, 180, 64, 16), cu_seqlens=(3, 4, 4, 80, 170), **ALL),
]
WHOLE = [case.name for case in MORE]  # also run on whole sequences
