"""Sums over channels on the tensor cores, with nothing but a constant 0/1 matrix; N = 8, 16, 32 and 64.

A thread holds 8 states of one channel (`own_layout`): lane bits 0 and 1 are channels, the next log2(N / 8) say which 8
of the states, the rest are channels again. A quad of lanes is so 4 channels of the same 8 states. In a product
m16n8k8, dC's terms pc and dB's terms pb are the A operand (registers pc_i, pb_i, pc_i+4, pb_i+4; row = quad, and
quad + 8 for pb) and the selector is B, so that D[q, i] is the sum of pc_i over quad q and D[q + 8, i] that of pb_i.
After 4 products a lane has 4 of these, dC and dB of an even and an odd column i; two steps fill a tile of 8 registers.
The quads of the same states, and warps, are added by other warps (`over_channels` in finish.py), which wait anyway.

The tensor cores read the upper 19 bits of a float. With SPLIT, what is cut off goes through them too, which gives the
sums fp32's precision for twice the products.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

MMA = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"


@gluon.constexpr_function
def own_layout(channels, N, warps):
    """(channels, N): 8 states of one channel a thread."""
    parts = (N // 8).bit_length() - 1  # lane bits that say which 8 states
    lanes = [[1, 0], [2, 0]] + [[0, 8 << i] for i in range(parts)] + [[4 << i, 0] for i in range(3 - parts)]
    across = [[(256 // N) << i, 0] for i in range((warps - 1).bit_length())]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4]], lanes, across, [], [channels, N])


STEPS = gl.constexpr(2)  # whose sums fill a tile of 8 registers a thread


@gluon.constexpr_function
def _text(t, split):
    """Operands: $0-7 the sums of a tile, $8-15 the same registers as input, $16-23 pc, $24-31 pb, $32-39 selectors."""
    lines = [
        "{ .reg .b32 c<8>, b<8>, lc<8>, lb<8>, m;",
        ".reg .f32 d<4>, zero, fx, fy;",
        "mov.f32 zero, 0f00000000;",
    ]
    for i in range(8):
        lines += [f"mov.b32 c{i}, ${16 + i}; mov.b32 b{i}, ${24 + i};"]
        for name in "cb" if split else "":
            lines += [
                f"and.b32 m, {name}{i}, 0xffffe000; mov.b32 fx, {name}{i}; mov.b32 fy, m;",
                f"sub.rn.f32 fx, fx, fy; mov.b32 l{name}{i}, fx; mov.b32 {name}{i}, m;",
            ]
    start = "{zero, zero, zero, zero}"
    for part in ["", "l"] if split else [""]:
        for i in range(4):
            a = ", ".join(f"{part}{name}{j}" for j in (i, i + 4) for name in "cb")
            lines += [f"{MMA} {{d0, d1, d2, d3}}, {{{a}}}, {{${32 + i}, ${36 + i}}}, {start};"]
            start = "{d0, d1, d2, d3}"
    lines += [f"mov.f32 ${4 * t + r}, d{r};" for r in range(4)]
    return "\n".join(lines) + "\n}"


@gluon.constexpr_function
def _constraints():
    return ",".join(["=f"] * 8 + [str(i) for i in range(8)] + ["f"] * 24)  # the sums are updated in place


@gluon.jit
def selectors(BLOCK_D: gl.constexpr, N: gl.constexpr, OWN: gl.constexpr):
    """The B operands: register i of a thread is 1 where its quad is i."""
    zeros = gl.zeros([BLOCK_D, N], gl.int32, OWN)
    lane = gl.inline_asm_elementwise("mov.u32 $0, %laneid;", "=r,r", [zeros], dtype=gl.int32, is_pure=True, pack=1)
    i = gl.arange(0, N, gl.SliceLayout(0, OWN))[None, :] % 8
    return gl.where(lane // 4 == i, 1.0, 0.0)


@gluon.jit
def add_step(sums, pc, pb, selector, t: gl.constexpr, SPLIT: gl.constexpr):
    """Put the sums over quads of pc (dC) and pb (dB) into `sums` as step t < STEPS of it.

    Where they are, `position` tells.
    """
    return gl.inline_asm_elementwise(
        _text(t, SPLIT), _constraints(), [sums, pc, pb, selector], dtype=gl.float32, is_pure=True, pack=8
    )


@gluon.jit
def position(row, n):
    """What a sum over all channels is, in row p of the four (4, N) that are left of each tile of `sums`.

    Row 4 i + p is row p of the i-th tile; the step of the group, 0 for dC or 1 for dB, and the state.
    """
    return row // 4 * 2 + n % 8 // 4, n // 2 % 2, 8 * (n // 8) + 2 * (row % 4) + n % 2
