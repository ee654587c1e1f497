"""Calls of `dot_product_attention` and `attention_qkvpacked`; the first also beside jax's function of that name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from fuzz.sizes import FLAG, KERNEL_FLOATS, bounds
from fuzz.text import Pasted
from hypothesis import strategies as st

import retrograd.jax
from retrograd.opinfo.cases import Case, Tensor

NAME = "dot_product_attention"
OPTIONAL = ("bias", "mask", "query_seq_lengths", "key_value_seq_lengths")


@st.composite
def qkvpacked(draw: st.DrawFn) -> Case:
    """A good call of `attention_qkvpacked`."""
    B, T, H, D = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 8))
    packed = draw(st.none() | bounds(T))
    B = B if packed is None else 1
    inputs = {"qkv": Tensor((B, T, 3, H, D), draw(KERNEL_FLOATS))}
    if draw(FLAG):
        inputs["bias"] = Tensor((1, H, T, T), "float32")
    if draw(FLAG):
        inputs["alibi_slopes"] = Tensor((H,), "float32")
    if draw(FLAG):
        inputs["sinks"] = Tensor((H,), "float32")
    if packed is not None:
        inputs["cu_seqlens"] = Tensor((len(packed),), "int32", values=packed)
    elif draw(FLAG):
        inputs["segment_ids"] = Tensor((B, T), "int32")
    dropped = {"dropout_p": 0.1} if draw(FLAG) else {}
    if dropped:
        inputs["dropout_seed"] = Tensor((), "int32", values=(3,))
    return Case("fuzzed", inputs, {"causal": draw(FLAG), **dropped})


@st.composite
def dot_product(draw: st.DrawFn) -> Case:
    """A good call of `dot_product_attention`."""
    B, T, S, K, H = (draw(st.integers(1, most)) for most in (2, 4, 4, 2, 4))
    N, dtype = K * draw(st.integers(1, 2)), draw(KERNEL_FLOATS)
    shapes = {"query": (B, T, N, H), "key": (B, S, K, H), "value": (B, S, K, H)}
    inputs = {name: Tensor(shape, dtype) for name, shape in shapes.items()}
    further = {
        "bias": Tensor((1, N, T, S), "float32"),
        "mask": Tensor((B, 1, T, S), "bool"),
        "query_seq_lengths": Tensor((B,), "int32"),
        "key_value_seq_lengths": Tensor((B,), "int32"),
    }
    inputs |= {name: tensor for name, tensor in further.items() if draw(FLAG)}
    return Case("fuzzed", inputs, {"is_causal": draw(FLAG)})


@dataclass(frozen=True, repr=False)
class BesideJax(Pasted):
    """A call that is taken, with the shapes and dtypes of jax's results, or refused by name where jax refuses it, too.

    Attributes:
        shapes: those of the arrays.
        dtypes: those of the arrays.
        options: of the call.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    options: dict[str, Any]

    def check(self) -> None:
        """Assert it."""
        ours, theirs = (self.outcome(f) for f in (retrograd.jax.dot_product_attention, jax.nn.dot_product_attention))
        if isinstance(ours, Exception):
            assert isinstance(theirs, Exception), f"jax takes this call: {ours}"
            assert isinstance(ours, (ValueError, TypeError))
            op, argument = str(ours).split()[:2]
            assert op == f"{NAME}:", ours
            assert argument.split("[")[0].split(".")[0] in {*self.shapes, *self.options}, ours
        elif not isinstance(theirs, Exception):
            assert [array.shape for array in ours] == [array.shape for array in theirs]
            assert ours[0].dtype == theirs[0].dtype
        else:
            assert self.shapes["value"][-1:] != self.shapes["key"][-1:], f"jax refuses this call: {theirs}"

    def outcome(self, function: Callable[..., Any]) -> Any:
        """Shapes and dtypes of the results, or the error."""
        arrays = {name: jax.ShapeDtypeStruct(shape, self.dtypes[name]) for name, shape in self.shapes.items()}
        call = lambda arrays: function(**arrays, **self.options, return_residual=True)  # noqa: E731
        try:
            with jax.numpy_dtype_promotion("standard"):
                return jax.eval_shape(call, arrays)
        except Exception as error:
            return error


@st.composite
def beside_jax(draw: st.DrawFn) -> BesideJax:
    """A good call in which some shapes and dtypes are changed, and arrays may lack their first axes."""
    B, T, S, K, H = 2, 3, draw(st.sampled_from((3, 4))), draw(st.integers(1, 2)), 4
    shapes: dict[str, list[int]] = {"query": [B, T, 2, H], "key": [B, S, K, H], "value": [B, S, K, H]}
    pairs = [draw(st.sampled_from((1, size))) for size in (B, 2, T, S)]
    shapes |= {"bias": [*pairs], "mask": [*pairs], "query_seq_lengths": [B], "key_value_seq_lengths": [B]}
    if draw(FLAG):  # without batch
        shapes |= {name: shapes[name][1:] for name in ("query", "key", "value")}
        shapes |= {name: [1, *shapes[name][1:]] for name in OPTIONAL}
    present = [name for name in shapes if name not in OPTIONAL or draw(FLAG)]
    for name in {"bias", "mask"}.intersection(present):
        shapes[name] = shapes[name][draw(st.integers(0, 4)) :]
    dtypes = dict.fromkeys(present, "float32") | {"mask": "bool", OPTIONAL[2]: "int32", OPTIONAL[3]: "int32"}
    for name in draw(st.lists(st.sampled_from(present), max_size=2)):
        shape = shapes[name]
        how = draw(st.sampled_from(("size", "more", "less", "dtype")))
        if how == "dtype":
            floats = ["float32", "bfloat16"] + (["float16"] if name == "bias" else [])
            dtypes[name] = draw(st.sampled_from(floats if name in ("query", "key", "value", "bias") else ["float32"]))
        elif how == "more":
            shape.insert(draw(st.integers(0, len(shape))), draw(st.integers(1, 2)))
        elif shape:
            axis = draw(st.integers(0, len(shape) - 1))
            shape[axis : axis + 1] = [draw(st.integers(1, 4))] if how == "size" else []
    options = {
        "is_causal": draw(FLAG),
        "scale": draw(st.sampled_from((None, 0.3, 2))),
        "local_window_size": draw(st.sampled_from((None, 0, 2, (1, 3), [2, 0]))),
    }
    return BesideJax({name: tuple(shapes[name]) for name in present}, dtypes, options)
