"""What a call of selective_scan asks for: dims, dtypes and options, every check, and the bytes, FLOPs and
exponentials it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from retrograd.core.chunks import places
from retrograd.core.dtypes import BYTES, FLOATS, KERNEL_FLOATS
from retrograd.core.errors import bad_dtype, bad_shape, bad_type, bad_value, check_option
from retrograd.core.op import Param, Params
from retrograd.core.tiles import power_of_two

OP = "selective_scan"
UPDATE = "selective_state_update"
ARGUMENTS = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_state", "cu_seqlens")
REQUIRED = ARGUMENTS[:5]
MAX_N = 256

Pass = Literal["fwd", "bwd"]


@dataclass(frozen=True, slots=True)
class Spec:
    """A checked call: shape and dtype of each array, None where absent, and the options.

    Raises:
        ValueError, TypeError: on construction, for arrays and options that do not fit together.
    """

    x: Param
    dt: Param
    A: Param
    B: Param
    C: Param
    D: Param | None = None
    z: Param | None = None
    dt_bias: Param | None = None
    initial_state: Param | None = None
    cu_seqlens: Param | None = None
    dt_softplus: bool = False
    return_final_state: bool = False

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def of(cls, params: Params, options: Mapping[str, Any]) -> Spec:
        """From shapes and dtypes by argument, None where absent, and the options by name."""
        for name in REQUIRED:
            if params.get(name) is None:
                raise bad_type(OP, name, None, "an array")
        return cls(**{name: params.get(name) for name in ARGUMENTS}, **options)  # type: ignore[arg-type]

    def arrays(self) -> dict[str, Param]:
        """The arguments that are there, in order."""
        given = ((name, self[name]) for name in ARGUMENTS)
        return {name: param for name, param in given if param is not None}

    def __getitem__(self, name: str) -> Param | None:
        """An argument by name."""
        param: Param | None = getattr(self, name)
        return param

    @property
    def batch(self) -> int:
        """Rows of x."""
        return self.x.shape[0]

    @property
    def time(self) -> int:
        """Steps of a row of x; with packed sequences, of all of them."""
        return self.x.shape[1]

    @property
    def channels(self) -> int:
        """Channels."""
        return self.x.shape[2]

    @property
    def N(self) -> int:
        """States a channel."""
        return self.A.shape[1]

    @property
    def packed(self) -> bool:
        """Whether several sequences lie one after the other in the one row of x."""
        return self.cu_seqlens is not None

    @property
    def sequences(self) -> int:
        """Independent recurrences: rows, or packed sequences."""
        return self.batch if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    def constant(self, name: str) -> bool:
        """Whether B or C is the same at all steps: (D, N)."""
        return len(self._matrix(name).shape) == 2

    def groups(self, name: str) -> int:
        """Groups of channels that share B or C at a step; 1 where it is constant in time."""
        shape = self._matrix(name).shape
        return shape[2] if len(shape) == 4 else 1

    def _matrix(self, name: str) -> Param:
        return self.B if name == "B" else self.C

    @property
    def complex(self) -> bool:
        """Whether A, B, C and the states are complex."""
        return self.A.dtype.startswith("complex")

    @property
    def compute_dtype(self) -> str:
        """Dtype of the real arithmetic."""
        return _dtypes(self.x)[0]

    @property
    def state_dtype(self) -> str:
        """Dtype of the states."""
        return state_dtype(self.x, self.A)

    @property
    def chunk(self) -> int:
        """Steps between two states that the forward pass keeps: as few as 2 bytes a channel and step allow."""
        numbers = self.N * (2 if self.complex else 1)
        return max(16, min(128, 2 * power_of_two(numbers)))

    @property
    def chunks(self) -> int:
        """Places for kept states in a row."""
        return places(self, self.chunk)

    @property
    def kept(self) -> Param:
        """The state that enters every chunk; what lies in places without a chunk has no meaning."""
        return Param((self.batch, self.chunks, self.channels, self.N), self.state_dtype)

    @property
    def state(self) -> Param:
        """The state of every sequence."""
        return Param((self.sequences, self.channels, self.N), self.state_dtype)

    def bytes_moved(self, which: Pass) -> int:
        """The fewest bytes a pass moves: each array read once, each result written once, the kept states included."""
        arguments = sum(_bytes(param) for param in self.arrays().values())
        final = _bytes(self.state) if self.return_final_state else 0
        forward = arguments + _bytes(self.x) + final + _bytes(self.kept)
        if which == "fwd":
            return forward
        unread = _bytes(self.initial_state) if self.initial_state else 0
        gradients = arguments - (_bytes(self.cu_seqlens) if self.cu_seqlens else 0)
        return forward - unread + gradients

    def flops(self, which: Pass) -> int:
        """Multiplications and additions of a pass, real ones; exponentials are counted apart."""
        steps = self.batch * self.time * self.channels
        per_state, per_step = (6, 10) if which == "fwd" else (18, 20)
        return steps * (per_state * self.N * (4 if self.complex else 1) + per_step)

    def exps(self, which: Pass) -> int:
        """Exponentials that a pass cannot do without: one a state and step, one each for softplus and gate."""
        steps = self.batch * self.time * self.channels
        return steps * (self.N + self.dt_softplus + (self.z is not None))


def _bytes(param: Param) -> int:
    return math.prod(param.shape) * BYTES[param.dtype]


def check(spec: Spec) -> None:
    """Raise what the user needs to read if the arrays and options do not fit together."""
    for name in ("dt_softplus", "return_final_state"):
        check_option(OP, name, getattr(spec, name), "bool")
    _check_arrays(OP, ("batch", "time"), spec.arrays())
    x, cu_seqlens = spec.x, spec.cu_seqlens
    if cu_seqlens is not None:
        if len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] < 2:
            raise bad_shape(OP, "cu_seqlens", cu_seqlens.shape, "(sequences + 1,) with at least one sequence")
        if cu_seqlens.dtype != "int32":
            raise bad_dtype(OP, "cu_seqlens", cu_seqlens.dtype, ("int32",))
        if spec.batch != 1:
            raise bad_shape(OP, "x", x.shape, "a batch of 1, since cu_seqlens is given")
    if spec.initial_state is not None:
        rows = "sequences" if spec.packed else "batch"
        _expect_state(OP, "initial_state", spec.initial_state, rows, spec.state)


def check_update(params: Params, dt_softplus: Any) -> None:
    """The same for `selective_state_update`, whose x is a step without a dimension of time."""
    check_option(UPDATE, "dt_softplus", dt_softplus, "bool")
    arrays = {name: param for name, param in params.items() if param is not None}
    _check_arrays(UPDATE, ("batch",), arrays)
    x, A = arrays["x"], arrays["A"]
    _expect_state(UPDATE, "state", arrays["state"], "batch", Param((x.shape[0], *A.shape), state_dtype(x, A)))


def state_dtype(x: Param, A: Param) -> str:
    """Dtype of the states."""
    real, pair = _dtypes(x)
    return pair if A.dtype == pair else real


def _dtypes(x: Param) -> tuple[str, str]:
    """Dtypes of the arithmetic, real and complex."""
    return ("float64", "complex128") if x.dtype == "float64" else ("float32", "complex64")


def _check_arrays(op: str, axes: tuple[str, ...], arrays: Mapping[str, Param]) -> None:
    """All but states and packing; `axes` are those of x before its channels."""
    x, A = arrays["x"], arrays["A"]
    if len(x.shape) != len(axes) + 1:
        raise bad_shape(op, "x", x.shape, f"({', '.join(axes)}, channels)")
    if x.dtype not in FLOATS:
        raise bad_dtype(op, "x", x.dtype, FLOATS)
    channels = x.shape[-1]
    real, pair = _dtypes(x)
    if len(A.shape) != 2 or A.shape[0] != channels:
        raise bad_shape(op, "A", A.shape, f"(channels={channels}, state)")
    if A.dtype not in (real, pair):
        raise bad_dtype(op, "A", A.dtype, (real, pair))
    if not 1 <= A.shape[1] <= MAX_N:
        raise bad_shape(op, "A", A.shape, f"(channels={channels}, state) with 1 to {MAX_N} states")

    activation = tuple(dict.fromkeys((x.dtype, real)))
    for name in ("B", "C"):
        _check_input_matrix(op, name, axes, arrays, (pair,) if A.dtype == pair else activation)
    for name in ("dt", "z"):
        if name in arrays:
            _expect(op, name, arrays[name], x.shape, f"the shape of x, {x.shape}", activation)
    for name in ("D", "dt_bias"):
        if name in arrays:
            _expect(op, name, arrays[name], (channels,), f"(channels={channels},)", (real,))


def _check_input_matrix(
    op: str, name: str, axes: tuple[str, ...], arrays: Mapping[str, Param], dtypes: tuple[str, ...]
) -> None:
    """B or C: at every step, at every step and group, or, where there is time, constant as a parameter is."""
    *lead, channels = arrays["x"].shape
    N, param = arrays["A"].shape[1], arrays[name]
    sizes = ", ".join(f"{axis}={size}" for axis, size in zip(axes, lead, strict=True))
    forms = [f"({sizes}, state={N})", f"({sizes}, groups, state={N})"]
    groups = param.shape[len(lead) : -1][:1]
    shape = (*lead, *groups, N)
    if "time" in axes:
        forms.append(f"(channels={channels}, state={N})")
        if len(param.shape) == 2:
            shape, dtypes = (channels, N), dtypes[-1:]
    _expect(op, name, param, shape, " or ".join(forms), dtypes)
    if groups and (groups[0] < 1 or channels % groups[0]):
        raise bad_value(op, f"{name}.shape[{len(lead)}]", groups[0], f"groups that divide the channels, {channels}")


def _expect_state(op: str, name: str, param: Param, rows: str, state: Param) -> None:
    count, channels, N = state.shape
    _expect(op, name, param, state.shape, f"({rows}={count}, channels={channels}, state={N})", (state.dtype,))


def _expect(op: str, name: str, param: Param, shape: tuple[int, ...], expected: str, dtypes: tuple[str, ...]) -> None:
    if param.shape != shape:
        raise bad_shape(op, name, param.shape, expected)
    if param.dtype not in dtypes:
        raise bad_dtype(op, name, param.dtype, dtypes)


def takes_kernels(spec: Spec) -> bool:
    """Whether the kernels take a call's dtypes."""
    return spec.x.dtype in KERNEL_FLOATS and not spec.complex
