"""The tiles of the kernels of attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from retrograd.core.arch import KIB, Arch
from retrograd.core.spec import Pass
from retrograd.core.tiles import warps_of

from ..arrays import columns
from ..op import Spec


@dataclass(frozen=True)
class Tile:
    """A tile of queries and a tile of keys.

    Attributes:
        queries: queries of a tile.
        keys: keys of a tile, a multiple of 32.
        num_warps: warps of a program.
        num_stages: tiles that are loaded ahead, and the one that is used.
        spills: spill instructions that tests allow: of loop invariants with every option on or in float32; more where
            the tile was measured to be the fastest with them.
    """

    queries: int
    keys: int
    num_warps: int
    num_stages: int = 2
    spills: int = 10


@dataclass(frozen=True)
class Plan:
    """The tiles of the kernels of a pass.

    Attributes:
        queries: of kernels whose programs own queries, and walk over keys.
        keys: of those that own keys, and walk over queries.
        pairs: of those that own both.
        fused: of the one that computes dk, dv and dq.
    """

    queries: Tile
    keys: Tile
    pairs: Tile
    fused: Tile


# Width of a head -> tiles of the forward pass, of dq, and of dk and dv. The side that a program walks over (keys,
# keys, queries) is the order of sums: packing sequences, or a window, must not change it.
Table = Mapping[int, tuple[Tile, Tile, Tile]]
# Tuned on an H200 with 4 rows of 4096 steps and 24 heads; with 8, causal, for those wider than 128.
TUNED: Table = {
    64: (Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 4, 2, spills=50)),
    128: (Tile(64, 64, 4, 3), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2, spills=20)),
    256: (Tile(64, 64, 4, 1), Tile(64, 64, 4, 2, spills=30), Tile(64, 64, 8, 2)),
    512: (Tile(64, 64, 8, 1, spills=40), Tile(64, 32, 8, 1), Tile(64, 32, 8, 1, spills=260)),
    1024: (Tile(64, 32, 8, 1),) * 3,  # for the forward pass alone
}
# Of dk and dv with a softcap or a bias, which take registers.
LADEN = {64: Tile(64, 64, 4, 2, spills=50), 128: Tile(64, 64, 4, 2, spills=70), 256: Tile(64, 32, 8, 2)}
# Of dq for long walks over keys.
LONG = {128: Tile(128, 64, 8, 3)}
# Of the gradient of a bias, whose kernel keeps a tile of pairs in registers.
PAIRS = {64: Tile(64, 64, 4, 2), 128: Tile(64, 64, 4, 1)}
FUSED = {64: Tile(64, 64, 4, 2), 128: Tile(64, 128, 8, 2), 256: Tile(32, 64, 8, 2), 512: Tile(16, 32, 8, 1)}
WIDEST_BACKWARD = 512  # columns: registers hold no gradients of wider heads
# On the architectures without a table of their own.
SMALL: Table = {
    64: (Tile(64, 64, 8, 2), Tile(64, 32, 8, 2), Tile(32, 64, 8, 2)),
    128: (Tile(64, 32, 8, 2, spills=12), Tile(64, 32, 8, 2, spills=12), Tile(32, 32, 8, 2)),
    256: (Tile(64, 32, 8, 2), Tile(32, 32, 8, 1), Tile(32, 32, 8, 1)),
    512: (Tile(32, 32, 8, 1), Tile(16, 32, 8, 1), Tile(16, 32, 8, 1, spills=20)),
}
# On AMD GPUs, none of which has run them. Chosen by registers (two waves share a SIMD if each has up to 256), spills
# and LDS: gfx950 has 160 KB of it, so that tiles are loaded ahead.
GFX942: Table = {
    **SMALL,
    64: (Tile(128, 64, 8, 1), Tile(128, 64, 8, 1), Tile(64, 64, 8, 1)),
    128: (Tile(64, 64, 8, 1), Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
}
GFX950: Table = {
    **SMALL,
    64: (Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 64, 8, 1)),
    128: (Tile(64, 64, 8, 2), Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
}
OWN: dict[str, Table] = {"sm_90": TUNED, "gfx942": GFX942, "gfx950": GFX950}
# In float32, whose products do not run on tensor cores.
EXACT: dict[int, tuple[Tile, Tile, Tile]] = {
    64: (Tile(64, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 64, 8, 1)),
    256: (Tile(16, 32, 8, 1), Tile(16, 32, 8, 1), Tile(16, 32, 8, 1)),
}
# The widest heads in float32, where a program has this much shared memory.
EXACT_WIDE: Table = EXACT | {512: (Tile(16, 32, 8, 1), Tile(16, 32, 16, 1), Tile(16, 32, 16, 1, spills=20))}
BYTES_OF_EXACT_WIDE = 200 * KIB


def table_of(spec: Spec, arch: Arch) -> Table:
    """The table that has a call's tiles."""
    if spec.q.dtype == "float32":
        return EXACT_WIDE if arch.shared_memory >= BYTES_OF_EXACT_WIDE else EXACT
    return OWN.get(arch.name, SMALL)


def widest(spec: Spec) -> int:
    """Columns of a tile that holds a head of queries and keys, or of values."""
    return max(columns(spec.head_size), columns(spec.value_size))


def has_tiles(spec: Spec, arch: Arch, which: Pass) -> bool:
    """Whether there are tiles for heads of these sizes."""
    limit = max(table_of(spec, arch))
    return widest(spec) <= (limit if which == "fwd" else min(limit, WIDEST_BACKWARD))


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The tiles of a pass: a function of the sizes of a head, the dtype, the options and the architecture."""
    table = table_of(spec, arch)
    width = min(width for width in table if width >= widest(spec))
    forward, queries, keys = table[width]
    pairs, fused = Tile(32, 32, 4, 1), keys
    if table is TUNED:
        if "bias" in spec.uses and width <= 256:
            forward = replace(forward, num_stages=2)  # two programs' tiles of the bias fit beside those of k and v
        if {"softcap", "bias"} & spec.uses:
            keys = LADEN.get(width, keys)
        if not {"window", "bias", "softcap", "cu_seqlens_q", "segment_ids"} & spec.uses:
            queries = LONG.get(width, queries)
        pairs, fused = PAIRS.get(width, pairs), FUSED.get(width, fused)
    own = forward if which == "fwd" else queries
    return Plan(*(replace(tile, num_warps=warps_of(tile.num_warps, arch)) for tile in (own, keys, pairs, fused)))
