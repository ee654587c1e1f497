"""Wrong arguments are refused by name on every path into PyTorch: direct, registered operator, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from checks.integration import PassThrough
from torch import Tensor

from retrograd.core.op import Op
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.functions import ops
from retrograd.ops.infos import info, infos
from retrograd.testing.draw import draw, options

OPS: dict[str, Op] = {op.name: op for op in ops()}


def right(op: OpInfo) -> Case:
    """The case that is spoiled: with the most arguments, of those in float32, which all conversions below take."""

    def fits(case: Case) -> bool:
        return all(tensor.dtype in ("float32", "int32") for tensor in case.inputs.values())

    return max(op.tagged("test"), key=lambda case: (fits(case), len(case.inputs)))


class Subclass(Tensor):
    pass


def directly(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    return function(**kwargs)


def without_gradients(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return function(**kwargs)


def under_a_dispatch_mode(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    with PassThrough():
        return function(**kwargs)


def beside_a_subclass(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    def can_be_one(value: Any) -> bool:
        return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested and value.dim() > 0

    return function(**{name: v.as_subclass(Subclass) if can_be_one(v) else v for name, v in kwargs.items()})


def compiled(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(lambda kwargs: function(**kwargs), backend="eager")(kwargs)


WAYS = [directly, without_gradients, under_a_dispatch_mode, beside_a_subclass]

# Conversions of a tensor into a wrong argument, each with its error.
NO_TENSORS: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "sparse": (lambda t: t.to_sparse(), TypeError, "{name} has layout sparse_coo, expected strided"),
    "compressed sparse": (
        lambda t: torch.eye(3, dtype=t.dtype).to_sparse_csr(), TypeError,
        "{name} has layout sparse_csr, expected strided"),
    "nested": (lambda t: torch.nested.nested_tensor([t, t]), TypeError, "{name} has layout nested, expected strided"),
    "jagged": (
        lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged), TypeError,
        "{name} has layout nested, expected strided"),
    "of oneDNN": (
        lambda t: t.float().to_mkldnn(), TypeError, "{name} has layout _mkldnn, expected strided"),
    "of numpy": (lambda t: t.numpy(), TypeError, "{name} is ndarray, expected a torch.Tensor"),
    "a list": (lambda t: t.tolist(), TypeError, "{name} is list, expected a torch.Tensor"),
    "a number": (lambda t: 1.0, TypeError, "{name} is float, expected a torch.Tensor"),
    "a text": (lambda t: "x", TypeError, "{name} is str, expected a torch.Tensor"),
}  # fmt: skip
EACH_ARGUMENT = [pytest.param(each, name, id=f"{each.name}-{name}") for each in infos() for name in right(each).inputs]
OPTIONS: dict[str, tuple[Any, ...]] = {
    "bool": (1, 0, 1.0, None, "silu", [], {}, np.True_, torch.tensor(True), 10**400),
    "float": ([1], "1e-6", None, True, 1j, {}, torch.tensor(1e-6)),
    "float[]": ("x", None, True, 3.0, {}, np.zeros(2), torch.tensor(0.0)),
    "float?": ([1], "1", True, 1j, {}, torch.tensor(1.0)),
    "int[]?": ("x", True, 3, {}, np.zeros(2), torch.tensor(0)),
    "SymInt?": (2.0, [2], True, "2", torch.tensor(2)),
    "str": (1, None, True, b"auto", [], {}, torch.tensor(1)),
    "str?": (1, True, b"silu", [], {}, torch.tensor(1)),
    "ScalarType?": (1, "float32", [], np.float32),
}
EXPECTED = {
    "bool": "a bool",
    "float": "a float",
    "float[]": "a tuple of floats",
    "float?": "a float or None",
    "int[]?": "a tuple of ints or None",
    "SymInt?": "an int or None",
    "str": "a str",
    "str?": "a str or None",
    "ScalarType?": "a torch.dtype or None",
}
EACH_OPTION = [
    pytest.param(info(op.name), name, value, EXPECTED[kind], id=f"{op.name}-{name}-{str(value)[:20]}")
    for op in OPS.values()
    for name, kind in op.options.items()
    for value in OPTIONS[kind]
]


def arguments(op: OpInfo) -> dict[str, Any]:
    case = right(op)
    return {**draw(case, "cpu", 0), **options(case)}


def refusal(way: Callable[..., Any], op: OpInfo, kwargs: dict[str, Any], kind: type[Exception]) -> str:
    with pytest.raises(kind) as raised:
        way(op.torch, kwargs)
    assert raised.type is kind
    return str(raised.value)


@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|nested tensors):UserWarning")
@pytest.mark.parametrize("what", NO_TENSORS)
@pytest.mark.parametrize(("op", "name"), EACH_ARGUMENT)
def test_an_argument_that_is_no_tensor_with_strides_is_named(op: OpInfo, name: str, what: str) -> None:
    spoil, kind, text = NO_TENSORS[what]
    kwargs = arguments(op)
    kwargs[name] = spoil(kwargs[name])
    for way in WAYS:
        assert refusal(way, op, kwargs, kind) == f"{op.name}: " + text.format(name=name)


@pytest.mark.parametrize(("op", "name"), EACH_ARGUMENT)
def test_a_tensor_on_another_device_than_the_first_is_named(op: OpInfo, name: str) -> None:
    kwargs = arguments(op)
    first, *others = (argument for argument in op.arguments if isinstance(kwargs.get(argument), Tensor))
    if not others:
        pytest.skip(f"{op.name} has no second tensor")
    kwargs[name] = kwargs[name].to("meta")
    refused, device, expected = (others[0], "cpu", "meta") if name == first else (name, "meta", "cpu")
    for way in WAYS:
        message = refusal(way, op, kwargs, ValueError)
        assert message == f"{op.name}: device of {refused} is '{device}', expected {expected}, the device of {first}"


@pytest.mark.parametrize("op", infos(), ids=lambda op: op.name)
def test_tensors_that_are_all_on_the_meta_device_have_results_there(op: OpInfo) -> None:
    kwargs = {name: v.to("meta") if isinstance(v, Tensor) else v for name, v in arguments(op).items()}
    for way in WAYS:
        results = way(op.torch, kwargs)
        assert (results if isinstance(results, Tensor) else results[0]).is_meta


@pytest.mark.parametrize(("op", "name", "value", "expected"), EACH_OPTION)
def test_an_option_of_the_wrong_type_is_named(op: OpInfo, name: str, value: Any, expected: str) -> None:
    kwargs = {**arguments(op), name: value}
    type_name = f"numpy.{type(value).__name__}" if isinstance(value, np.bool) else type(value).__name__
    for way in WAYS:
        assert refusal(way, op, kwargs, TypeError) == f"{op.name}: {name} is {type_name}, expected {expected}"


@pytest.mark.parametrize(
    ("op", "name", "value", "kind", "text"),
    [
        ("linear_scan", "reverse", 1, TypeError, "reverse is int, expected a bool"),
        ("rms_norm", "eps", [1], TypeError, "eps is list, expected a float"),
        ("rms_norm", "weight", torch.eye(8).to_sparse(), TypeError, "weight has layout sparse_coo, expected strided"),
        (
            "causal_conv1d", "weight", torch.ones(24, 4, device="meta"), ValueError,
            "device of weight is 'meta', expected cpu, the device of x",
        ),
    ],
    ids=["option", "option that has no hash", "layout", "device"],
)  # fmt: skip
def test_a_compiled_function_says_the_same(op: str, name: str, value: Any, kind: type[Exception], text: str) -> None:
    kwargs = {**arguments(info(op)), name: value}
    assert refusal(compiled, info(op), kwargs, kind) == f"{op}: {text}"


@pytest.mark.parametrize("name", ["eps", "weight_offset", "group_size"])
@pytest.mark.parametrize("value", [10**400, -(10**5000)], ids=["large", "too long to print"])
def test_an_int_that_no_number_of_the_machine_can_hold_is_named(name: str, value: int) -> None:
    kwargs = {**arguments(info("rms_norm")), name: value}
    for way in WAYS:
        message = refusal(way, info("rms_norm"), kwargs, ValueError)
        assert message.startswith(f"rms_norm: {name} is an int of {value.bit_length()} bits, expected ")
