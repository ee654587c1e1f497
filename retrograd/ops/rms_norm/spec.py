"""What a call of rms_norm asks for: dims, dtypes and options, every check, and the bytes and FLOPs it takes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from retrograd.core.dtypes import BYTES, FLOATS, KERNEL_FLOATS, accumulator
from retrograd.core.errors import bad_dtype, bad_shape, bad_type, bad_value
from retrograd.core.op import Param, Params

OP = "rms_norm"
# Largest row the kernels are built and tested for.
MAX_N = 262_144
SMALLEST_EPS = 2.0**-126  # a smaller eps is 0 in fp32, and a row of zeros would then be divided by 0

Pass = Literal["fwd", "bwd"]


@dataclass(frozen=True, slots=True)
class Spec:
    """A checked call.

    Attributes:
        x, weight, bias, residual, gate: shape and dtype of each array, None where absent.
        out_dtype: dtype of y.
        eps, weight_offset, group_size, norm_before_gate, prenorm: see `retrograd.rms_norm`.

    Raises:
        ValueError, TypeError: on construction, for arrays and options that do not fit together.
    """

    x: Param
    out_dtype: str
    weight: Param | None = None
    bias: Param | None = None
    residual: Param | None = None
    gate: Param | None = None
    eps: float = 1e-6
    weight_offset: float = 0.0
    group_size: int | None = None
    norm_before_gate: bool = False
    prenorm: bool = False

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def of(cls, params: Params, options: Mapping[str, Any]) -> Spec:
        """From shapes and dtypes by argument, and options by name; without `out_dtype`, y has the dtype of x."""
        x = params["x"]
        assert x is not None
        out_dtype = options.get("out_dtype")
        return cls(**{**params, **options, "out_dtype": x.dtype if out_dtype is None else out_dtype})

    @property
    def width(self) -> int:
        """Size of the last dimension of x."""
        return self.x.shape[-1]

    @property
    def N(self) -> int:
        """Columns that are normalised together."""
        return self.width if self.group_size is None else self.group_size

    @property
    def groups(self) -> int:
        """Parts that the columns of x are normalised in."""
        return 1 if self.group_size is None else self.width // self.group_size

    @property
    def heads(self) -> int:
        """Rows of the weight: heads, groups, or 1 where all rows share one weight."""
        per_head = [p.shape[0] for p in (self.weight, self.bias) if p is not None and len(p.shape) == 2]
        return per_head[0] if per_head else self.groups

    @property
    def lead(self) -> tuple[int, ...]:
        """The dimensions of x that count rows: all but heads and columns."""
        return self.x.shape[:-2] if self.per_head else self.x.shape[:-1]

    @property
    def per_head(self) -> bool:
        """Whether x has a dimension of heads, each with its own weight."""
        return self.heads > 1 and self.group_size is None

    @property
    def rows(self) -> int:
        """Rows of each head, M."""
        return math.prod(self.lead)

    @property
    def sum_dtype(self) -> str:
        """Dtype of s, what is normalised: the residual stream keeps its own."""
        return self.residual.dtype if self.residual else self.x.dtype

    @property
    def compute_dtype(self) -> str:
        """Dtype of the arithmetic."""
        return accumulator(self.x.dtype)

    @property
    def sum(self) -> Param | None:
        """The sum of x and the residual, where there is one."""
        return Param(self.x.shape, self.sum_dtype) if self.residual else None

    @property
    def rstd(self) -> Param:
        """What the forward pass keeps of each row."""
        return Param((*self.x.shape[:-1], self.groups), self.compute_dtype)

    @property
    def has_kernels(self) -> bool:
        """Whether kernels take its dtypes."""
        return self.x.dtype in KERNEL_FLOATS

    @property
    def gate_first(self) -> bool:
        """The gate multiplies what is normalised."""
        return self.gate is not None and not self.norm_before_gate

    @property
    def gate_last(self) -> bool:
        """The gate multiplies what comes out."""
        return self.gate is not None and self.norm_before_gate

    @property
    def separate_dresidual(self) -> bool:
        """Whether dresidual is an array of its own: it is not where dx already holds it."""
        return self.residual is not None and self.residual.dtype != self.x.dtype

    @property
    def has_dsum(self) -> bool:
        """Whether a gradient of the sum comes into the backward pass: the sum is returned, and is not x."""
        return self.prenorm and self.residual is not None

    def bytes_moved(self, which: Pass) -> int:
        """The fewest bytes a pass moves: each array read once, each result written once; rstd and weights included."""
        size = math.prod(self.x.shape)
        x, y, s = BYTES[self.x.dtype], BYTES[self.out_dtype], BYTES[self.sum_dtype]
        residual = BYTES[self.residual.dtype] if self.residual else 0
        gate = BYTES[self.gate.dtype] if self.gate else 0
        parameters = sum(BYTES[p.dtype] * math.prod(p.shape) for p in (self.weight, self.bias) if p)
        rstd = BYTES["float32"] * self.rows * self.heads
        if which == "fwd":
            return size * (x + gate + y + (residual + s if residual else 0)) + parameters + rstd
        dsum = s if self.has_dsum else 0
        dresidual = residual if self.separate_dresidual else 0
        return size * (y + s + dsum + 2 * gate + x + dresidual) + 2 * parameters + rstd

    def flops(self, which: Pass) -> int:
        """Multiplications and additions of a pass, exponentials of the gate counted as one."""
        per_element = (4 if which == "fwd" else 9) + (4 if self.gate else 0) + (1 if self.residual else 0)
        return per_element * math.prod(self.x.shape)


def check(spec: Spec) -> None:
    """Raise what the user needs to read if the arrays and options do not fit together."""
    x = spec.x
    if len(x.shape) == 0:
        raise bad_shape(OP, "x", x.shape, "at least one dimension (..., N)")
    if x.dtype not in FLOATS:
        raise bad_dtype(OP, "x", x.dtype, FLOATS)
    check_options(spec)
    N = x.shape[-1]
    shared, per_head = f"(N={N},)", f"(heads={x.shape[-2]}, N={N})" if len(x.shape) > 1 else None
    for name, param in (("weight", spec.weight), ("bias", spec.bias)):
        if param is None:
            continue
        fits = param.shape == (N,) or (per_head is not None and param.shape == tuple(x.shape[-2:]))
        if not fits:
            raise bad_shape(OP, name, param.shape, f"{shared} or {per_head}" if per_head else shared)
        if len(param.shape) == 2 and spec.group_size is not None:
            raise bad_shape(OP, name, param.shape, f"{shared}, since group_size is given")
        allowed = dict.fromkeys(("float32", x.dtype)) if x.dtype != "float64" else ("float64",)
        if param.dtype not in allowed:
            raise bad_dtype(OP, name, param.dtype, allowed)
    if spec.weight and spec.bias and spec.weight.shape != spec.bias.shape:
        raise bad_shape(OP, "bias", spec.bias.shape, f"the shape of weight, {spec.weight.shape}")
    if spec.weight is None and spec.weight_offset != 0:
        raise bad_value(OP, "weight_offset", spec.weight_offset, "0.0, since weight is None")
    for name, other in (("residual", spec.residual), ("gate", spec.gate)):
        if other is None:
            continue
        if other.shape != x.shape:
            raise bad_shape(OP, name, other.shape, f"the shape of x, {x.shape}")
        same_kind = FLOATS[:3] if x.dtype != "float64" else ("float64",)
        if other.dtype not in same_kind:
            raise bad_dtype(OP, name, other.dtype, same_kind)


def check_options(spec: Spec) -> None:
    """Raise for an option that no x, or not this x, can be used with."""
    x = spec.x
    for name in ("eps", "weight_offset"):
        value = getattr(spec, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_type(OP, name, value, "a float")
        if not -sys.float_info.max <= value <= sys.float_info.max:  # ints may be larger
            raise bad_value(OP, name, value, "a finite number")
    if spec.eps < SMALLEST_EPS:
        raise bad_value(OP, "eps", spec.eps, f"at least {SMALLEST_EPS:.4g}, the smallest normal float32")
    group_size = spec.group_size
    if group_size is not None:
        if isinstance(group_size, bool) or not isinstance(group_size, int):
            raise bad_type(OP, "group_size", group_size, "an int or None")
        if group_size < 1 or x.shape[-1] % group_size:
            raise bad_value(OP, "group_size", group_size, f"a divisor of the last dimension of x, {x.shape[-1]}")
        if group_size > MAX_N:
            raise bad_value(OP, "group_size", group_size, f"at most {MAX_N} columns to normalise together")
    N = x.shape[-1] if group_size is None else group_size
    if N > MAX_N:
        raise bad_shape(OP, "x", x.shape, f"at most {MAX_N} columns to normalise together")
    for name in ("norm_before_gate", "prenorm"):
        if not isinstance(getattr(spec, name), bool):
            raise bad_type(OP, name, getattr(spec, name), "a bool")
    allowed = FLOATS[:3] if x.dtype != "float64" else ("float64",)
    if spec.out_dtype not in allowed:
        raise bad_dtype(OP, "out_dtype", spec.out_dtype, allowed)
