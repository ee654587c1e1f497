"""What a call of ssd asks for: dims, dtypes and options, every check, and the bytes and FLOPs it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from retrograd.core.chunks import places
from retrograd.core.dtypes import BYTES, FLOATS, KERNEL_FLOATS, accumulator
from retrograd.core.errors import bad_dtype, bad_shape, bad_type, bad_value, check_option
from retrograd.core.op import Param, Params

OP = "ssd"
UPDATE = "ssd_update"
STEP = "ssd_step"
PREFILL = "ssd_prefill"
ARGUMENTS = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_state", "cu_seqlens")
REQUIRED = ARGUMENTS[:5]
ROWS = ("x", "dt", "B", "C")  # of a step, that those after it need
NOT_NEGATIVE = (0.0, math.inf)
MOST = 256  # of P and of N
# A sequence that goes on from the state at a multiple of so many steps has the bits of the whole, on every path.
BORDER = 128
# Steps of all rows, with a block for each sequence: kernels count steps in 32 bits, past the last one by some blocks.
MOST_STEPS = 2**31 - 2**18
# Steps that FLOPs are counted for: within them pairs of steps meet, beyond them only states do.
BLOCK = 64

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
    dt_limit: tuple[float, float] = NOT_NEGATIVE
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
    def heads(self) -> int:
        """Heads, H."""
        return self.x.shape[2]

    @property
    def P(self) -> int:
        """Channels of a head."""
        return self.x.shape[3]

    @property
    def groups(self) -> int:
        """Groups of heads that share B and C, G."""
        return self.B.shape[2]

    @property
    def N(self) -> int:
        """States a channel."""
        return self.B.shape[3]

    @property
    def packed(self) -> bool:
        """Whether several sequences lie one after the other in the one row of x."""
        return self.cu_seqlens is not None

    @property
    def sequences(self) -> int:
        """Independent recurrences: rows, or packed sequences."""
        return self.batch if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def compute_dtype(self) -> str:
        """Dtype of sums and states."""
        return accumulator(self.x.dtype)

    @property
    def operand_dtype(self) -> str:
        """Dtype of what is multiplied in matrix products, and of kept states: that of x, B and C, if they have one."""
        same = self.B.dtype == self.C.dtype == self.x.dtype
        return self.x.dtype if same else self.compute_dtype

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest delta, as numbers of the dtype of sums."""
        return in_range(self.dt_limit, self.compute_dtype)

    @property
    def chunk(self) -> int:
        """Steps between two states that the forward pass keeps.

        Those of a long sequence then take at most as many bytes as x, if they are in its dtype.
        """
        return 128 if self.N <= 128 else 256

    @property
    def chunks(self) -> int:
        """Places for kept states in a row."""
        return places(self, self.chunk)

    @property
    def kept(self) -> Param:
        """The state that enters every chunk; what lies in places without a chunk has no meaning."""
        return Param((self.batch, self.chunks, self.heads, self.P, self.N), self.operand_dtype)

    @property
    def state(self) -> Param:
        """The state of every sequence."""
        return Param((self.sequences, self.heads, self.P, self.N), self.compute_dtype)

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
        """Of the matrix products, with blocks of 64 steps, half of whose pairs of steps count."""
        steps = self.batch * self.time
        states, pairs, scores = (2, 1, 1) if which == "fwd" else (5, 2, 3)
        per_head = self.P * (2 * states * self.N + pairs * BLOCK)
        return steps * (self.heads * per_head + scores * self.groups * BLOCK * self.N)


def _bytes(param: Param) -> int:
    return math.prod(param.shape) * BYTES[param.dtype]


def check(spec: Spec) -> None:
    """Raise what the user needs to read if the arrays and options do not fit together."""
    check_option(OP, "return_final_state", spec.return_final_state, "bool")
    _check_step_options(OP, spec.dt_softplus, spec.dt_limit)
    _check_arrays(OP, ("batch", "time"), spec.arrays())
    x, cu_seqlens = spec.x, spec.cu_seqlens
    if cu_seqlens is not None:
        if len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] < 2:
            raise bad_shape(OP, "cu_seqlens", cu_seqlens.shape, "(sequences + 1,) with at least one sequence")
        if cu_seqlens.dtype != "int32":
            raise bad_dtype(OP, "cu_seqlens", cu_seqlens.dtype, ("int32",))
        if spec.batch != 1:
            raise bad_shape(OP, "x", x.shape, "a batch of 1, since cu_seqlens is given")
    if spec.batch * spec.time + BLOCK * spec.sequences > MOST_STEPS:
        raise bad_shape(OP, "x", x.shape, f"batch * time + {BLOCK} * sequences of at most {MOST_STEPS}")
    if spec.initial_state is not None:
        rows = "sequences" if spec.packed else "batch"
        _expect_state(OP, "initial_state", spec.initial_state, rows, spec.state)


def check_update(params: Params, dt_softplus: Any, dt_limit: Any) -> None:
    """The same for `ssd_update`, whose x is a step without a dimension of time."""
    _check_one_step(UPDATE, params, "state", params["state"], dt_softplus, dt_limit)


def check_step(params: Params, window: Params, dt_softplus: Any, dt_limit: Any) -> None:
    """The same for `ssd_step`, whose window has the shapes and dtypes of the step."""
    _check_one_step(STEP, params, "window.state", window["window.state"], dt_softplus, dt_limit)
    for name in ROWS:
        row = params[name]
        assert row is not None
        batch, *rest = row.shape
        shape = (batch, BORDER, *rest)
        _expect(STEP, f"window.{name}", window[f"window.{name}"], shape, f"{shape}, as {name}", (row.dtype,))
    _expect(STEP, "window.steps", window["window.steps"], (batch,), f"(batch={batch},)", ("int32",))


def _check_one_step(op: str, params: Params, name: str, state: Param | None, dt_softplus: Any, dt_limit: Any) -> None:
    _check_step_options(op, dt_softplus, dt_limit)
    arrays = {name: param for name, param in params.items() if param is not None}
    _check_arrays(op, ("batch",), arrays)
    x, N = arrays["x"], arrays["B"].shape[-1]
    _expect_state(op, name, state, "batch", Param((*x.shape, N), accumulator(x.dtype)))


def check_prefill(params: Params, dt_softplus: Any, dt_limit: Any) -> None:
    """The same for `ssd_prefill`, whose sequence is cut in two before `ssd` sees it."""
    _check_step_options(PREFILL, dt_softplus, dt_limit)
    arrays = {name: param for name, param in params.items() if param is not None}
    _check_arrays(PREFILL, ("batch", "time"), arrays)
    if "initial_state" in arrays:
        (batch, _, *head), N = arrays["x"].shape, arrays["B"].shape[-1]
        state = Param((batch, *head, N), accumulator(arrays["x"].dtype))
        _expect_state(PREFILL, "initial_state", arrays["initial_state"], "batch", state)


def in_range(limit: tuple[float, float], dtype: str) -> tuple[float, float]:
    """A limit whose numbers the dtype has: what it has no number for is infinite."""
    largest = 2.0**128 if dtype == "float32" else math.inf

    def number(x: float) -> float:
        return math.copysign(math.inf, x) if abs(x) >= largest else float(x)

    return number(limit[0]), number(limit[1])


def _check_step_options(op: str, dt_softplus: Any, dt_limit: Any) -> None:
    check_option(op, "dt_softplus", dt_softplus, "bool")
    check_option(op, "dt_limit", dt_limit, "float[]")
    if len(dt_limit) != 2 or not dt_limit[0] <= dt_limit[1]:
        raise bad_value(op, "dt_limit", dt_limit, "(low, high) with low <= high")


def _check_arrays(op: str, axes: tuple[str, ...], arrays: Mapping[str, Param]) -> None:
    """All but states and packing; `axes` are those of x before its heads."""
    x, B = arrays["x"], arrays["B"]
    if len(x.shape) != len(axes) + 2:
        raise bad_shape(op, "x", x.shape, f"({', '.join(axes)}, heads, channels)")
    if x.dtype not in FLOATS:
        raise bad_dtype(op, "x", x.dtype, FLOATS)
    *lead, heads, P = x.shape
    if not 1 <= P <= MOST:
        raise bad_shape(op, "x", x.shape, f"({', '.join(axes)}, heads, channels) with 1 to {MOST} channels a head")
    sizes = ", ".join(f"{axis}={size}" for axis, size in zip(axes, lead, strict=True))
    real = accumulator(x.dtype)
    activation = tuple(dict.fromkeys((x.dtype, real)))

    _expect(op, "dt", arrays["dt"], (*lead, heads), f"({sizes}, heads={heads})", activation)
    _expect(op, "A", arrays["A"], (heads,), f"(heads={heads},)", (real,))
    if len(B.shape) != len(axes) + 2 or B.shape[:-2] != tuple(lead):
        raise bad_shape(op, "B", B.shape, f"({sizes}, groups, state)")
    groups, N = B.shape[-2:]
    if not 1 <= N <= MOST:
        raise bad_shape(op, "B", B.shape, f"({sizes}, groups, state) with 1 to {MOST} states")
    if groups < 1 or heads % groups:
        raise bad_value(op, f"B.shape[{len(lead)}]", groups, f"groups that divide the heads, {heads}")
    for name in ("B", "C"):
        _expect(op, name, arrays[name], B.shape, f"({sizes}, groups={groups}, state={N})", activation)
    if "z" in arrays:
        _expect(op, "z", arrays["z"], x.shape, f"the shape of x, {x.shape}", activation)
    if "D" in arrays:
        D = arrays["D"]
        shape = (heads, P) if len(D.shape) == 2 else (heads,)
        _expect(op, "D", D, shape, f"(heads={heads},) or (heads={heads}, channels={P})", (real,))
    if "dt_bias" in arrays:
        _expect(op, "dt_bias", arrays["dt_bias"], (heads,), f"(heads={heads},)", (real,))


def _expect_state(op: str, name: str, param: Param | None, rows: str, state: Param) -> None:
    count, heads, P, N = state.shape
    _expect(op, name, param, state.shape, f"({rows}={count}, heads={heads}, channels={P}, state={N})", (state.dtype,))


def _expect(
    op: str, name: str, param: Param | None, shape: tuple[int, ...], expected: str, dtypes: tuple[str, ...]
) -> None:
    assert param is not None
    if param.shape != shape:
        raise bad_shape(op, name, param.shape, expected)
    if param.dtype not in dtypes:
        raise bad_dtype(op, name, param.dtype, dtypes)


def as_tuple(limit: Any) -> Any:
    """A limit that was given as a list, as it stands in configurations, as a tuple."""
    return tuple(limit) if isinstance(limit, list) else limit


def takes_kernels(spec: Spec) -> bool:
    """Whether the kernels take a call: its dtypes, and there is something to compute."""
    return spec.x.dtype in KERNEL_FLOATS and 0 not in spec.x.shape
