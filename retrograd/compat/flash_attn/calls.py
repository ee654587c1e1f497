"""Calls of `retrograd.attention` with flash-attn's options, and with its names in errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor

import retrograd
from retrograd.compat.checks import errors_of, expect, expect_dims, expect_if_given, flag
from retrograd.compat.dropout import dropout_options
from retrograd.compat.dtypes import full
from retrograd.core.errors import bad_dtype, bad_shape, bad_type, bad_value, check_option
from retrograd.core.torch.arguments import check_tensors
from retrograd.core.torch.autocast import no_autocast
from retrograd.core.torch.launch import dtype_name

NAMES = {"scale": "softmax_scale", "window": "window_size", "sinks": "learnable_sink"}

Window = tuple[int | None, int | None]
Results = tuple[Tensor, Tensor]  # out and lse
Returned = Tensor | Results | tuple[Tensor, Tensor, Tensor]


def options(
    me: str, softmax_scale: Any, causal: Any, window_size: Any, softcap: Any, deterministic: Any = False
) -> dict[str, Any]:
    """The options of `retrograd.attention`; a softcap that is not positive means none."""
    flag(me, "deterministic", deterministic)
    check_option(me, "softcap", softcap, "float")
    return {
        "causal": flag(me, "causal", causal),
        "window": _window(me, window_size),
        "scale": softmax_scale,
        "softcap": None if softcap <= 0 else softcap,
    }


def _window(me: str, window_size: Any) -> tuple[int, int] | None:
    """Two numbers, of which -1 and None mean all keys; like the packages, it takes anything that holds two integers."""
    try:
        left, right = (-1 if side is None else index(side) for side in window_size)
    except (TypeError, ValueError):
        raise bad_value(me, "window_size", window_size, "(left, right), two ints") from None
    return None if left == right == -1 else (left, right)


@contextmanager
def naming(me: str, device: torch.device) -> Iterator[None]:
    """Without autocast, as in flash-attn; errors of `retrograd.attention` speak of this function and its arguments."""
    with no_autocast(device.type), errors_of("attention", me, attention_qkvpacked=me, attention_step_=me, **NAMES):
        yield


def expect_heads(me: str, q: Tensor, k: Tensor, v: Tensor, layout: str, of_k: str = "k", of_v: str = "v") -> None:
    """Raise unless q, k and v have this layout, whose last two dimensions are heads and channels, and one dtype."""
    expect_dims(me, "q", q, layout)
    expect(me, "q", q, q.shape, layout)
    for name, tensor in ((of_k, k), (of_v, v)):
        expect_dims(me, name, tensor, layout)
        if tensor.dtype != q.dtype:
            raise bad_dtype(me, name, dtype_name(tensor.dtype), (f"{dtype_name(q.dtype)}, as q",))
    heads = k.shape[-2]
    if q.shape[-2] % max(heads, 1):
        raise bad_shape(me, of_k, k.shape, f"a number of heads that divides {q.shape[-2]}, those of q")
    rows = (*q.shape[:-3], k.shape[-3]) if q.ndim == 4 else k.shape[:1]
    expect(me, of_k, k, (*rows, heads, q.shape[-1]), layout)
    expect(me, of_v, v, (*rows, heads, v.shape[-1]), layout)


def expect_extras(me: str, q: Tensor, rows: int, slopes: Tensor | None, sinks: Tensor | None = None) -> dict[str, Any]:
    """The arguments of `retrograd.attention` for slopes, (nheads,) or (batch, nheads), and sinks, (nheads,)."""
    heads = q.shape[-2]
    if slopes is not None:
        shape, dims = ((rows, heads), "(batch, nheads)") if slopes.ndim == 2 else ((heads,), "(nheads,)")
        expect(me, "alibi_slopes", slopes, shape, dims)
    expect_if_given(me, "learnable_sink", sinks, (heads,), "(nheads,)")
    return {"alibi_slopes": full(q, slopes), "sinks": full(q, sinks)}


def expect_boundaries(me: str, name: str, boundaries: Any, longest: Any, argument: str) -> None:
    """Raise unless these are boundaries of sequences, and where reading costs nothing also for a longer sequence."""
    if not isinstance(boundaries, Tensor):
        raise bad_type(me, name, boundaries, "a torch.Tensor")
    if boundaries.ndim != 1 or not len(boundaries):
        raise bad_shape(me, name, boundaries.shape, "(batch + 1,)")
    if boundaries.dtype != torch.int32:
        raise bad_dtype(me, name, dtype_name(boundaries.dtype), ("int32",))
    if longest is None or isinstance(longest, Tensor):
        return
    if not isinstance(longest, int | torch.SymInt) or isinstance(longest, bool):
        raise bad_type(me, argument, longest, "an int")
    if readable(boundaries) and len(boundaries) > 1:
        found = int(boundaries.diff().max())
        if found > longest:
            raise bad_value(me, argument, longest, f"at least {found}, the length of a sequence of {name}")


def expect_used(me: str, name: str, used: Tensor | None, boundaries: Tensor) -> None:
    """Raise unless these are numbers of steps of each sequence, and where reading costs nothing for too many."""
    expect_if_given(me, name, used, (len(boundaries) - 1,), "(batch,)", "int32 or int64")
    if used is not None and readable(used):
        lengths = boundaries.diff()
        if bool(((used < 0) | (used > lengths)).any()):
            raise bad_value(me, name, used.tolist(), f"numbers from 0 to the lengths, {lengths.tolist()}")


def readable(numbers: Tensor) -> bool:
    """Whether numbers can be read without waiting for a device, and without breaking a graph."""
    return numbers.device.type == "cpu" and not torch.compiler.is_compiling()


@dataclass(frozen=True)
class Call:
    """The name of a function, and its arguments that most of them share."""

    me: str
    _: KW_ONLY
    dropout_p: Any
    softmax_scale: Any
    causal: Any
    window_size: Any
    softcap: Any
    alibi_slopes: Tensor | None
    deterministic: Any
    return_attn_probs: Any
    learnable_sink: Tensor | None = None
    return_lse: Any = False

    def __post_init__(self) -> None:
        flag(self.me, "return_attn_probs", self.return_attn_probs)
        flag(self.me, "return_lse", self.return_lse)

    def arguments(self, q: Tensor, rows: int) -> dict[str, Any]:
        """The arguments of `retrograd.attention`, with a seed drawn for dropout; `rows` is the number of sequences."""
        settings = options(self.me, self.softmax_scale, self.causal, self.window_size, self.softcap, self.deterministic)
        extras = expect_extras(self.me, q, rows, self.alibi_slopes, self.learnable_sink)
        return {**settings, **extras, **dropout_options(self.dropout_p, q.device)}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Results:
        """`retrograd.attention` with lse."""
        with naming(self.me, q.device):
            return retrograd.attention(q, k, v, **arguments, return_lse=True)

    def attend_packed(self, qkv: Tensor, **arguments: Any) -> Results:
        """`retrograd.attention_qkvpacked` with lse."""
        with naming(self.me, qkv.device):
            return retrograd.attention_qkvpacked(qkv, **arguments, return_lse=True)

    def returned(self, out: Tensor, lse: Tensor, probabilities: Callable[[], Tensor]) -> Returned:
        """What the function returns."""
        if self.return_attn_probs:
            return out, lse, probabilities() if self.dropout_p else out.new_empty(0)
        return (out, lse) if self.return_lse else out


def tensors(me: str, required: int, **arguments: Any) -> None:
    """Raise unless the first `required` arguments, and all others that are not None, are tensors on one device."""
    check_tensors(me, arguments, required=required)
