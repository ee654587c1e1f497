"""The declaration of rms_norm: its arguments, options, results, and the rules that letters cannot express."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from retrograd.core.declaration import Letter, Result, option, optional, required
from retrograd.core.dtypes import FLOATS
from retrograd.core.errors import bad_dtype, bad_shape, bad_value
from retrograd.core.op import Implementation, Op, names
from retrograd.core.spec import CallSpec, Fold, Param, Pass, Size

# Largest row the kernels are built and tested for.
MAX_N = 262_144
SMALLEST_EPS = 2.0**-126  # a smaller eps is 0 in fp32, and a row of zeros would then be divided by 0
PARAMETERS = ("weight", "bias")
ACTIVATIONS = ("silu", "sigmoid")  # of the gate
TILES = ("x", "residual", "gate", "y", "sum", "rstd")  # arrays with the rows of x


@dataclass(frozen=True)
class Spec(CallSpec):
    """Root-mean-square normalisation of the last dimension, fused with the residual addition and the gate.

    With s = x + residual and z = gate, and act silu or sigmoid::

        y = s / sqrt(mean(s^2) + eps) * (weight + weight_offset) + bias        no gate
        y = u / sqrt(mean(u^2) + eps) * ... ,  u = s * act(z)                  gate
        y = (s / sqrt(mean(s^2) + eps) * ... ) * act(z)                        gate, norm_before_gate

    Sums are taken in float32. s is rounded to the dtype of the residual before it is normalised. All gradients are
    bitwise reproducible; a row's results and gradients do not depend on the rest of its batch.
    """

    x: Param = required(
        "*batch N",
        *FLOATS,
        doc="""(..., N), float32, bfloat16 or float16, any strides. float64 runs on
        the portable path.""",
    )
    weight: Param | None = optional(
        "N | H N",
        "compute_dtype",
        "x",
        positional=True,
        doc="""(N,), or (H, N) with
        x (..., H, N): a weight for each head. float32 or the dtype of x.""",
    )
    bias: Param | None = optional("N | H N", "compute_dtype", "x", doc="like weight.")
    residual: Param | None = optional("*batch N", "floats", doc="like x, of any of the dtypes; added to x first.")
    gate: Param | None = optional("*batch N", "floats", doc="like x, of any of the dtypes.")
    eps: float = option("float", 1e-6, doc="added to the mean square.")
    weight_offset: float = option("float", 0.0, doc="added to the weight, in float32; 1.0 for Gemma's norm.")
    group_size: int | None = option(
        "SymInt?",
        None,
        doc="""columns that are normalised together; all N by default. Must
        divide N.""",
    )
    norm_before_gate: bool = option("bool", False, doc="gate the output instead of the input.")
    gate_activation: str = option(
        "str", "silu", choices=ACTIVATIONS, doc='act: "silu", or "sigmoid" as in Kimi Linear.'
    )
    prenorm: bool = option("bool", False, doc="also return s.")
    out_dtype: str | None = option("ScalarType?", None, doc="dtype of y; that of x by default.")

    op: ClassVar = "rms_norm"
    elsewhere: ClassVar = {
        "epsilon": "eps",
        "ngroups": "group_size, the columns of a group",
        "offset": "weight_offset",
        "residual_in_fp32": "residual in float32",
        "return_residual": "prenorm",
        "scale": "weight",
        "variance_epsilon": "eps",
        "z": "gate",
        "zero_centered_weight": "weight_offset=1.0",
    }
    independent: ClassVar = ("batch",)
    letters: ClassVar = {"N": Letter("N"), "H": Letter("heads")}
    results: ClassVar = (
        Result("y", "*batch N", "y_dtype"),
        Result("sum", "*batch N", "sum_dtype", when="residual", returned="prenorm", instead="x"),
    )
    kept: ClassVar = (Result("rstd", "*batch groups", "compute_dtype"),)
    whole: ClassVar = {"prenorm": True}

    width = Size("N")

    RETURNS: ClassVar = """y (..., N); with `prenorm`, (y, s), where s has the dtype of the residual. Without a
        residual, s is a copy of x, which may be modified in place."""
    SOURCE: ClassVar = """Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4; the gate is
        Mamba-2's (Dao and Gu, 2024), with a sigmoid that of Kimi Linear (Kimi Team, 2025)."""
    TORCH_EXAMPLE: ClassVar = """
        >>> import torch, retrograd
        >>> x = torch.randn(2, 16, 64, requires_grad=True)
        >>> weight = torch.ones(64, requires_grad=True)
        >>> y, stream = retrograd.rms_norm(x, weight, residual=torch.randn(2, 16, 64), prenorm=True)
        >>> (y.sum() + stream.sum()).backward()
        >>> weight.grad.shape
        torch.Size([64])
        """
    JAX_EXAMPLE: ClassVar = """
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import rms_norm
        >>> x = jnp.ones((2, 16, 64))
        >>> dx = jax.grad(lambda x: rms_norm(x, jnp.ones(64)).sum())(x)
        >>> dx.shape
        (2, 16, 64)
        """

    @property
    def N(self) -> int:
        """Columns that are normalised together."""
        return self.width if self.group_size is None else self.group_size

    @property
    def groups(self) -> int:
        """Groups of columns of x; each is normalised by itself."""
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
    def floats(self) -> tuple[str, ...]:
        """Dtypes allowed beside that of x."""
        return FLOATS[:3] if self.x.dtype != "float64" else ("float64",)

    @property
    def y_dtype(self) -> str:
        """Dtype of y."""
        return self.x.dtype if self.out_dtype is None else self.out_dtype

    @property
    def sum_dtype(self) -> str:
        """Dtype of s: that of the residual, else that of x."""
        return self.residual.dtype if self.residual else self.x.dtype

    @property
    def gate_first(self) -> bool:
        """Whether the gate multiplies the input of the norm."""
        return self.gate is not None and not self.norm_before_gate

    @property
    def gate_last(self) -> bool:
        """Whether the gate multiplies the output of the norm."""
        return self.gate is not None and self.norm_before_gate

    @property
    def sigmoid(self) -> bool:
        """Whether the activation of the gate is sigmoid."""
        return self.gate_activation == "sigmoid"

    @property
    def normalised(self) -> str:
        """Name of the array that is normalised, s in formulas."""
        return "sum" if self.residual else "x"

    def reads(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """The gradients of the results, s, the gate, the weight, rstd; the bias only if a gate follows the norm."""
        bias = ("bias",) if self.gate_last else ()
        return (*self.gradients_in(), *self.present((self.normalised, "gate", "weight", *bias, "rstd")))

    def makes(self, wanted: frozenset[str]) -> tuple[str, ...]:
        """The gradients of x, residual and gate, wanted or not; those of weight and bias both or neither."""
        residual = () if self.same_gradient() else ("dresidual",)
        parameters = () if wanted.isdisjoint(PARAMETERS) else ("dweight", "dbias")
        return self.present(("dx", *residual, "dgate", *parameters))

    def same_gradient(self) -> Mapping[str, str]:
        """dresidual is dx, unless their dtypes differ."""
        return {"residual": "x"} if self.residual and self.residual.dtype == self.x.dtype else {}

    def same_axes(self) -> Mapping[str, str]:
        """Heads are the last axis of the batch."""
        return {"H": f"batch[{len(self.x.shape) - 2}]"}

    def folds(self, size: int) -> Iterator[Fold]:
        """The calls as more rows if they share the parameters; else as more heads or groups, each with its own."""
        yield self.folded(dict.fromkeys(TILES), size)
        per_head = any(param is not None and len(param.shape) == 2 for param in (self.weight, self.bias))
        axis = len(self.x.shape) - (2 if per_head else 1)
        axes = dict.fromkeys(TILES, axis) | dict.fromkeys(PARAMETERS, 0)
        yield self.folded(axes, size, group_size=None if per_head else self.N)

    def flops(self, which: Pass) -> int:
        """Multiplications and additions of a pass, exponentials of the gate counted as one."""
        gate = 0 if self.gate is None else 3 if self.sigmoid else 4  # silu is z times sigmoid
        per_element = (4 if which == "fwd" else 9) + gate + (1 if self.residual else 0)
        return per_element * math.prod(self.x.shape)

    def shape_of(self, name: str) -> str:
        """A parameter has heads only if x has at least two dimensions."""
        return "N" if name in PARAMETERS and len(self.x.shape) < 2 else CallSpec.shape_of(self, name)

    def bind_sizes(self) -> None:
        """Heads are the last but one dimension of x."""
        if len(self.x.shape) > 1:
            self.sizes["H"] = self.x.shape[-2]

    def check(self) -> None:
        """Raise for parameters, columns or dtypes that do not fit together."""
        for name in PARAMETERS:
            param = self[name]
            if param is not None and len(param.shape) == 2 and self.group_size is not None:
                raise bad_shape(self.op, name, param.shape, f"(N={self.width},), since group_size is given")
        if self.weight and self.bias and self.weight.shape != self.bias.shape:
            raise bad_shape(self.op, "bias", self.bias.shape, f"the shape of weight, {self.weight.shape}")
        if self.weight is None and self.weight_offset != 0:
            raise bad_value(self.op, "weight_offset", self.weight_offset, "0.0, since weight is None")
        if self.gate is None and self.sigmoid:
            raise bad_value(self.op, "gate_activation", self.gate_activation, "'silu', since gate is None")
        if self.y_dtype not in self.floats:
            raise bad_dtype(self.op, "out_dtype", self.y_dtype, self.floats)
        group_size = self.group_size
        if group_size is not None and (group_size < 1 or self.width % group_size):
            expected = f"a divisor of the last dimension of x, {self.width}"
            raise bad_value(self.op, "group_size", group_size, expected)
        if self.N > MAX_N:
            expected = f"at most {MAX_N} columns to normalise together"
            if group_size is not None:
                raise bad_value(self.op, "group_size", group_size, expected)
            raise bad_shape(self.op, "x", self.x.shape, expected)

    def check_options(self) -> None:
        """Raise for option values that are invalid for every x, too."""
        CallSpec.check_options(self)
        for name in ("eps", "weight_offset"):
            value = getattr(self, name)
            if not -sys.float_info.max <= value <= sys.float_info.max:
                raise bad_value(self.op, name, value, "a finite number")
        if self.eps < SMALLEST_EPS:
            raise bad_value(self.op, "eps", self.eps, f"at least {SMALLEST_EPS:.4g}, the smallest normal float32")


IMPLEMENTATIONS = (
    Implementation(
        f"{__package__}.hopper",
        takes=names("x weight eps weight_offset group_size prenorm out_dtype"),
    ),
    Implementation(
        f"{__package__}.triton",
        takes=names(
            "x weight bias residual gate"
            " eps weight_offset group_size norm_before_gate gate_activation prenorm out_dtype"
        ),
    ),
)
OP = Op(Spec, __package__, IMPLEMENTATIONS)
