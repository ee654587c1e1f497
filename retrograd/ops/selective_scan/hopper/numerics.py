"""Special functions in fp32 by single instructions, and tiles put together from rows."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import ex2, reciprocal

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return reciprocal(1.0 + ex2(x * -LOG2E))


@gluon.jit
def log1p_unit(e):
    """log(1 + e) for e in [0, 1]: e times a polynomial of degree 7, relative error 3e-7; no special function."""
    p = e * -0.00853909645229578 + 0.044089239090681076
    p = p * e + -0.10768117010593414
    p = p * e + 0.17745204269886017
    p = p * e + -0.24495449662208557
    p = p * e + 0.33275479078292847
    p = p * e + -0.4999740421772003
    p = p * e + 0.9999998211860657
    return p * e


@gluon.jit
def softplus(x):
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))."""
    return gl.maximum(x, 0.0) + log1p_unit(ex2(-gl.abs(x) * LOG2E))


@gluon.jit
def step_size(dt, bias, mask, DT_SOFTPLUS: gl.constexpr):
    """Delta in fp32; 0 where the mask is false, which leaves the state as it is."""
    delta = dt.to(gl.float32) + bias
    if DT_SOFTPLUS:
        delta = softplus(delta)
    return gl.where(mask, delta, 0.0)


@gluon.jit
def through_gate(dy, z):
    """dy silu(z), and dy silu'(z)."""
    s = sigmoid(z)
    zs = z * s
    return dy * zs, dy * (s + zs * (1.0 - s))


@gluon.jit
def next_state(decay, h, dx, b):
    """decay h + dx b. Which product is rounded is written out, so that whoever computes a state finds its bits."""
    return gl.fma(decay, h, dx * b)


@gluon.jit
def stack4(a, b, c, d):
    """Four vectors (D,) as the columns of (D, 4)."""
    return gl.join(gl.join(a, c), gl.join(b, d)).reshape([a.shape[0], 4])


@gluon.jit
def stack8(a, b, c, d, e, f, g, h):
    """Eight vectors (D,) as the columns of (D, 8); a thread's elements stay its own."""
    return gl.join(stack4(a, c, e, g), stack4(b, d, f, h)).reshape([a.shape[0], 8])
