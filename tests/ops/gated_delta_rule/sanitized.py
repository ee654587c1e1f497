"""The calls of gated_delta_rule under the sanitizers, which come to every kernel."""

from __future__ import annotations

from retrograd.opinfo.cases import Case
from retrograd.ops.gated_delta_rule.cases import ALL, case

NAMED = ("odd", "one_step", "packed_gaps")
# Several products over channels, several programs for a state, more than one kept state.
MORE: list[Case] = [
    case("blocks_128", (1, 150, 1, 2, 128, 128), **ALL),
    case("blocks_256", (1, 270, 1, 1, 256, 136), dtype="float16"),
    case("single", (1, 70, 1, 2, 40, 40), dtype="float32", **ALL),
    case("channels_128", (1, 150, 1, 2, 128, 128), of_channels=True, **ALL),
    case("channels_256", (1, 270, 1, 1, 256, 136), of_channels=True, dtype="float16"),
    case("channels_single", (1, 70, 1, 2, 40, 40), of_channels=True, dtype="float32", **ALL),
    case("channels_packed", (1, 180, 1, 2, 128, 64), of_channels=True, cu_seqlens=(3, 4, 4, 140, 170), **ALL),
    case("packed_128", (1, 180, 1, 2, 128, 64), cu_seqlens=(3, 4, 4, 140, 170), **ALL),
]
