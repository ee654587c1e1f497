"""Sums over the channels of a warp on the tensor cores, with nothing but a constant 0/1 matrix; N = 8, 16, 32 and 64.

A thread holds 8 states of one channel (`own_layout`): lane bits 0 and 1 are channels, the next log2(N / 8) say which 8
of the states, the rest are channels again. A quad of lanes is so 4 channels of the same 8 states. In a product
m16n8k8, dC's terms pc and dB's terms pb are the A operand (registers pc_i, pb_i, pc_i+4, pb_i+4; row = quad, and
quad + 8 for pb) and the selector is B, so that D[q, i] is the sum of pc_i over quad q and D[q + 8, i] that of pb_i.
After 4 products a lane has 4 of these, dC and dB of an even and an odd column i. Quads of the same states are added by
exchanges, in which a lane gives away the sums that its partner keeps:

| N | exchanges over lane bits | shuffles | sums left a lane | steps in a tile of 8 registers a thread |
|---|---|---|---|---|
| 8 | 2, 3; then 4, where both keep the sum | 4 | 1 | 8 |
| 16 | 3, 4 | 3 | 1 | 8 |
| 32 | 4 | 2 | 2 | 4 |
| 64 | none | 0 | 4 | 2 |

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


@gluon.constexpr_function
def steps_a_tile(N):
    """Steps whose sums fill a tile of 8 registers a thread."""
    return min(8, 128 // N)


@gluon.constexpr_function
def _text(t, N, split):
    """Operands: $0-7 the sums of a tile, $8-15 the same registers as input, $16-23 pc, $24-31 pb, $32-39 selectors."""
    lines = [
        "{ .reg .b32 c<8>, b<8>, lc<8>, lb<8>, lane, m, n, x<4>;",
        ".reg .f32 d<4>, zero, fx, fy; .reg .pred upper<5>;",
        "mov.f32 zero, 0f00000000; mov.u32 lane, %laneid;",
    ]
    bits = {8: (2, 3), 16: (3, 4), 32: (4,), 64: ()}[N]
    for bit in bits:
        lines += [f"and.b32 m, lane, {1 << bit}; setp.ne.u32 upper{bit}, m, 0;"]
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
    lines += [f"mov.b32 x{r}, d{r};" for r in range(4)]
    left = 4
    for bit in bits:  # the lower lanes keep the first half: dC of dC and dB, then the even column of two
        left //= 2
        for r in range(left):
            lines += [
                f"selp.b32 m, x{r + left}, x{r}, upper{bit}; selp.b32 n, x{r}, x{r + left}, upper{bit};",
                f"shfl.sync.bfly.b32 n, n, {1 << bit}, 31, 0xffffffff; mov.b32 fx, m; mov.b32 fy, n;",
                f"add.rn.f32 fx, fx, fy; mov.b32 x{r}, fx;",
            ]
    if N == 8:  # both partners keep the last sum
        lines += ["shfl.sync.bfly.b32 n, x0, 16, 31, 0xffffffff; mov.b32 fx, x0; mov.b32 fy, n; add.rn.f32 fx, fx, fy;"]
        lines += ["mov.b32 x0, fx;"]
    lines += [f"mov.b32 ${t * left + r}, x{r};" for r in range(left)]
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
def add_step(sums, pc, pb, selector, t: gl.constexpr, N: gl.constexpr, SPLIT: gl.constexpr):
    """Put the sums over the warp's channels of pc (dC) and pb (dB) into `sums` as step t < steps_a_tile(N) of it.

    Where they are, `position` tells.
    """
    return gl.inline_asm_elementwise(
        _text(t, N, SPLIT), _constraints(), [sums, pc, pb, selector], dtype=gl.float32, is_pure=True, pack=8
    )


@gluon.jit
def position(d, n, N: gl.constexpr):
    """What element (d, n) of `sums` is, d counted in its warp.

    Step within the tile, 0 for dC or 1 for dB, and state; and whether it is the one to take, not its copy.
    """
    t = n % 8 // (8 // steps_a_tile(N))
    which = (n // 2) % 2 if N == 64 else (d // 4) % 2
    state = 8 * (n // 8) + 2 * (d % 4) + (d // 8 if N <= 16 else n % 2)
    return t, which, state, d < 16
