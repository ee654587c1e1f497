"""A bad call as text: a good call with one argument replaced. The error has to name the op and the argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

from checks.parts import PACKED, length
from hypothesis import strategies as st
from ops.attention import fuzz_dot_product

import retrograd
import retrograd.jax
from retrograd.core.spec import arguments
from retrograd.core.torch.launch import DTYPES
from retrograd.opinfo.cases import Case, Tensor
from retrograd.ops.attention.packed import Packed
from retrograd.ops.infos import NAMES, info
from retrograd.testing.draw import draw as draw_case
from retrograd.testing.draw import options, outputs
from retrograd.testing.verify import Framework

from .good import Good, cases_of, is_double
from .text import Pasted

IMPORTS = """
from math import inf
import numpy as np, torch, jax.numpy as jnp, retrograd, retrograd.jax
from checks.integration import PassThrough
"""
WAYS = ("", "with torch.no_grad(): ", "with PassThrough(): ")
Change = tuple[str, str, tuple[str, ...]]  # an argument, its replacement, and the names that the error may have
UPDATES = {
    "causal_conv1d": "causal_conv1d_update",
    "selective_scan": "selective_state_update",
    "ssd": "ssd_update",
}
# Functions with a declaration of their own that are called as ops are.
FUNCTIONS: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "attention_qkvpacked": fuzz_dot_product.qkvpacked,
    "dot_product_attention": fuzz_dot_product.dot_product,
}

SCALARS = {("dot_product_attention", "bias"): ("0.5",), ("dot_product_attention", "mask"): ("True",)}

# Replacements of an array, in either framework and in one of them.
NO_ARRAYS = ("'text'", "3", "0.5", "[1.0, 2.0]", "object()", "10**400", "np.array('text')", "True", "{}")
NO_ARRAYS_OF: dict[Framework, tuple[str, ...]] = {
    "torch": ("np.ones((2, 3))", "jnp.ones(3)"),
    "jax": ("torch.ones(3)",),
}
# No op takes numbers of these dtypes, and no op indices of those.
NO_NUMBERS = ("int32", "bool", "int16", "uint8")
NO_INDICES: dict[Framework, tuple[str, ...]] = {"torch": ("int16", "bool", "float32"), "jax": ("bool", "float32")}
# Invalid values of an option, by the type of its default ...
NO_OPTIONS: dict[type, tuple[str, ...]] = {
    bool: ("1", "0", "None", "'silu'", "1.0", "[]", "np.True_", "torch.tensor(True)", "10**400", "float('nan')"),
    float: ("float('nan')", "float('inf')", "[1]", "None", "'1'", "True", "10**400", "1j", "{}", "torch.tensor(1.0)"),
}
# ... and by its name.
NO_OPTIONS_NAMED = {
    "activation": ("'relu'", "'SiLU'", "''", "1", "True", "b'silu'", "[]", "{}", "float('nan')"),
    "gate_activation": ("'swish'", "'SiLU'", "''", "None", "1", "True", "b'sigmoid'", "[]", "{}", "float('nan')"),
    "group_size": ("0", "-1", "2.0", "True", "[2]", "'2'", "10**400", "10**5000", "float('nan')"),
    "out_dtype": ("'garbage'", "'int32'", "3", "[]", "torch.int32", "object()"),
    "eps": ("0.0", "-1", "1e-40"),
    "window": ("()", "(1,)", "(1, 2, 3)", "(-2, 0)", "(1.0, 2)", "3", "'x'", "True", "(True, 1)", "(None, 1)",
        "np.ones(2)"),
    "scale": ("float('nan')", "float('inf')", "'1'", "True", "[1]", "1j", "10**400", "torch.tensor(1.0)"),
    "softcap": ("0", "-1.0", "float('nan')", "float('inf')", "'1'", "True", "[1]"),
    "dropout_p": ("1.0", "-0.1", "2"),
    "local_window_size": ("()", "(1,)", "(1, 2, 3)", "-1", "(-1, 0)", "(1.0, 2)", "1.5", "'x'", "True", "(True, 1)",
        "2**31", "10**5000", "(0, 10**5000)", "np.ones(2)", "float('nan')"),
    "implementation": ("'xla'", "'cudnn'", "True", "3"),
    "backward": ("'fast'", "None", "True", "1", "b'split'", "[]"),
    "dt_limit": (
        "None", "True", "0.5", "'x'", "{}", "()", "(1.0,)", "[0, 1, 2]", "(2.0, 1.0)", "(float('nan'), 1.0)",
        "(1.0, float('nan'))", "(False, 1.0)", "('0', '1')", "[[0.0], [1.0]]", "(None, 1.0)", "(0, 10**400)",
        "(1j, 2.0)", "np.ones(2)", "torch.ones(2)", "jnp.ones(2)", "(torch.tensor(0.0), 1.0)", "(np.float32(0), 1.0)",
    ),
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Bad(Pasted):
    """A call that has to be refused.

    Attributes:
        text: the call.
        op: the name that the error begins with.
        named: arguments of which the error names one.
    """

    text: str
    op: str
    named: tuple[str, ...]

    def check(self) -> None:
        """Assert that the call is refused and the error names the argument."""
        space: dict[str, Any] = {}
        exec(IMPORTS, space)
        try:
            exec(self.text, space)
        except (ValueError, TypeError) as error:
            assert_names(self.op, self.named, error)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}, expected ValueError or TypeError: {error}") from error
        else:
            raise AssertionError("the call was taken")


@dataclass(frozen=True, repr=False)
class Bent(Pasted):
    """A good call with one array of another shape or dtype: it is refused by name or computes the right results."""

    call: Good

    def check(self) -> None:
        """Assert that the call is refused by name or right."""
        op, case = info(self.call.op), self.call.case
        try:
            outputs(op.torch, draw_case(case, "cpu", self.call.seed), options(case))
        except (ValueError, TypeError) as error:
            assert_names(op.name, (*case.inputs, *case.options), error)
        else:
            self.call.check()


def assert_names(op: str, names: tuple[str, ...], error: Exception) -> None:
    """Assert that an error names the op and one of these arguments."""
    said = str(error)
    assert said.startswith(f"{op}: "), f"the op is not named: {said}"
    assert any(re.search(rf"\b{name}\b", said) for name in names), f"none of {names} is named: {said}"


@st.composite
def bad(draw: st.DrawFn, op: str, framework: Framework) -> Bad:
    """A bad call of an op."""
    case = draw(cases_of(op).filter(lambda case: framework == "torch" or not is_double(case)))
    return draw(spoilt(op, case, framework, list(spoilt_packing(op, case, framework))))


@st.composite
def bad_update(draw: st.DrawFn, op: str, framework: Framework) -> Bad:
    """A bad call of the generation step of an op."""
    case = draw(cases_of(op).filter(lambda case: framework == "torch" or not is_double(case)))
    update: Callable[[Case], Case] = import_module(f"ops.{op}.fuzz").update
    return draw(spoilt(UPDATES[op], update(case), framework))


@st.composite
def bad_function(draw: st.DrawFn, name: str, framework: Framework) -> Bad:
    """A bad call of one of FUNCTIONS."""
    case = draw(FUNCTIONS[name]())
    packing = spoilt_bounds(case, case.inputs["qkv"].shape[1], framework) if name == Packed.op else ()
    return draw(spoilt(name, case, framework, list(packing)))


@st.composite
def bent(draw: st.DrawFn, op: str) -> Bent:
    """A call of an op with one array changed: a dimension longer, shorter, added or removed, or another dtype."""
    case = draw(cases_of(op))
    name = draw(st.sampled_from(list(case.inputs)))
    tensor = case.inputs[name]
    shape = list(tensor.shape)
    how = draw(st.sampled_from(("longer", "shorter", "one", "more", "less", "dtype")))
    axis = draw(st.integers(0, max(len(shape) - 1, 0)))
    if how == "dtype" or not shape or tensor.values is not None:
        tensor = replace(tensor, dtype=draw(st.sampled_from(sorted(DTYPES))))
    elif how in ("longer", "shorter", "one"):
        shape[axis] = {"longer": shape[axis] + 1, "shorter": max(0, shape[axis] - 1), "one": 1}[how]
    elif how == "more":
        shape.insert(axis, draw(st.integers(0, 2)))
    else:
        del shape[axis]
    inputs = {**case.inputs, name: replace(tensor, shape=tuple(shape))}
    return Bent(Good(op, replace(case, inputs=inputs), seed=draw(st.integers(0, 10**6))))


@st.composite
def spoilt(draw: st.DrawFn, op: str, case: Case, framework: Framework, more: Sequence[Change] = ()) -> Bad:
    """A case as text, with one argument replaced by an invalid value; `more` are further candidates."""
    taken = signature(getattr(retrograd if framework == "torch" else retrograd.jax, op)).parameters
    parameters = {name: each for name, each in taken.items() if each.kind is not Parameter.VAR_KEYWORD}
    changes = [*spoilt_arrays(op, case, parameters, framework), *spoilt_options(parameters), *more]
    name, value, named = draw(st.sampled_from(changes))
    passed = {name: array(tensor, framework) for name, tensor in case.inputs.items()}
    passed |= {name: option(value, framework) for name, value in case.options.items() if value is not None}
    text = ", ".join(f"{name}={value}" for name, value in {**passed, name: value}.items())
    if framework == "jax":
        return Bad(f"retrograd.jax.{op}({text})", op, named)
    return Bad(f"{draw(st.sampled_from(WAYS))}retrograd.{op}({text})", op, named)


def spoilt_arrays(op: str, case: Case, parameters: Mapping[str, Parameter], framework: Framework) -> Iterator[Change]:
    """Invalid replacements of arrays."""
    own = info(op).op if op in NAMES else None
    call = own.call if own else Packed if op == Packed.op else None
    numbers = [name for name, declared in arguments(call).items() if declared.number] if call else []
    first, *others = case.inputs
    for name, tensor in case.inputs.items():
        good = array(tensor, framework)
        required = parameters[name].default is Parameter.empty
        dtypes = NO_NUMBERS if tensor.values is None else NO_INDICES[framework]
        values = [*NO_ARRAYS, *NO_ARRAYS_OF[framework], *(["None"] if required else [])]
        values += [array(replace(tensor, dtype=dtype), framework) for dtype in dtypes if dtype != tensor.dtype]
        values += [f"{good}[None, None, None]"] if name != first else []
        for value in ("3",) if name in numbers else SCALARS.get((op, name), ()):  # which are right there
            values.remove(value)
        if framework == "torch":
            values += [f"{good}.to_sparse()", f"torch.nested.nested_tensor([{good}, {good}])"]
            if others:
                yield name, f"{good}.to('meta')", tuple(others) if name == first else (name,)
        for value in values:
            yield name, value, (name,)


def spoilt_options(parameters: Mapping[str, Parameter]) -> Iterator[Change]:
    """Invalid values of options."""
    for name, parameter in parameters.items():
        for value in (*NO_OPTIONS.get(type(parameter.default), ()), *NO_OPTIONS_NAMED.get(name, ())):
            yield name, value, (name,)


def spoilt_packing(op: str, case: Case, framework: Framework) -> Iterator[Change]:
    """Invalid values of cu_seqlens."""
    if not info(op).time_axis or info(op).bounds.get("y") != PACKED:
        return
    yield from spoilt_bounds(case, length(info(op), case), framework)


def spoilt_bounds(case: Case, steps: int, framework: Framework) -> Iterator[Change]:
    """Invalid values of cu_seqlens for rows of so many steps."""

    def numbers(*values: int) -> str:
        return array(Tensor((len(values),), "int32", values=values), framework)

    if PACKED not in case.inputs:
        rows = next(iter(case.inputs.values())).shape[0]
        if rows > 1:
            yield PACKED, numbers(0, steps), (*case.inputs, PACKED)
        return
    good = case.inputs[PACKED].values
    assert good is not None
    for values in ((*good[:-1], steps + 1), (-1, *good[1:]), (steps + 2, *good[1:]), (), (-(2**31), *good[1:])):
        yield PACKED, numbers(*values), (PACKED,)


def array(tensor: Tensor, framework: Framework) -> str:
    """An array as text."""
    what: str = "ones" if tensor.values is None else "array"
    of: Any = tensor.shape if tensor.values is None else tensor.values
    of = tensor.values[0] if tensor.values and not tensor.shape else of
    shaped = f".reshape({tensor.shape})" if tensor.values and len(tensor.shape) > 1 else ""
    if framework == "jax":
        return f"jnp.{what}({of}, '{tensor.dtype}'){shaped}"
    return f"torch.{'ones' if what == 'ones' else 'tensor'}({of}, dtype=torch.{tensor.dtype}){shaped}"


def option(value: Any, framework: Framework) -> str:
    """An option as text."""
    return f"torch.{value}" if framework == "torch" and isinstance(value, str) and value in DTYPES else repr(value)
