"""The kernels of `ssd_step_` and `ssd_update_`: the calls they take, and what they are compiled to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks.resources import resources, wrong_descriptors

import retrograd
from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.spec import Param
from retrograd.ops.ssd.steps import Overwriting
from retrograd.ops.ssd.torch_step import IN_PLACE, UPDATE

HOPPER = SUPPORTED["sm_90"]


def spec(N: int = 128, *, dtype: str = "bfloat16", P: int = 64, **given: Param) -> Overwriting:
    """A step of three sequences with four heads in two groups."""
    rows = {"x": (3, 4, P), "dt": (3, 4), "B": (3, 2, N), "C": (3, 2, N)}
    windows = {f"window_{name}": (3, 64, *rows[name][1:]) for name in ("x", "dt", "B")}
    params = {name: Param(shape, dtype) for name, shape in (rows | windows).items()}
    params |= {"A": Param((4,), "float32"), "D": Param((4,), "float32"), "window_steps": Param((3,), "int32")}
    params["window_state"] = Param((3, 4, P, N), "float32")
    checked: Overwriting = IN_PLACE.spec(params | given, {"dt_softplus": True, "dt_limit": (0.0, 1.0)})
    return checked


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        ({}, True),
        ({"N": 256, "P": 128, "dtype": "float16"}, True),
        ({"D": Param((4, 64), "float32")}, True),
        ({"dtype": "float32"}, False),
        ({"N": 32}, False),
        ({"P": 32}, False),
        (
            {"z": Param((3, 4, 64), "bfloat16")},
            False,
        ),  # others run the sequence
        ({"B": Param((3, 2, 128), "float32"), "window_B": Param((3, 64, 2, 128), "float32")}, False),
    ],
)
def test_steps_are_taken_where_the_kernels_for_hopper_run_the_sequence(changed: dict[str, Any], taken: bool) -> None:
    assert (IN_PLACE.implementation(spec(**changed), HOPPER, "fwd") is not None) is taken
    assert IN_PLACE.implementation(spec(**changed), SUPPORTED["sm_100"], "fwd") is None


@pytest.mark.compile
@pytest.mark.parametrize("N", [64, 128, 256])
def test_its_products_are_those_of_hopper_and_nothing_is_spilled(N: int) -> None:
    program = IN_PLACE.forward(spec(N)).program({}, HOPPER)
    assert program is not None
    *_, row = (build(launch, program.arrays, HOPPER) for launch in program.launches)
    assert "wgmma.mma_async" in row.asm["ptx"]
    assert "mma.sync" not in row.asm["ptx"]
    assert resources(row).spills == 0
    assert not wrong_descriptors(row)


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("N", [16, 128, 256])
def test_the_recurrence_in_place_spills_nothing(N: int, arch: str) -> None:
    rows = {"x": (3, 4, 64), "dt": (3, 4), "B": (3, 2, N), "C": (3, 2, N)}
    params = {name: Param(shape, "bfloat16") for name, shape in rows.items()}
    params |= {"A": Param((4,), "float32"), "D": Param((4,), "float32"), "state": Param((3, 4, 64, N), "float32")}
    one = UPDATE.spec(params, {"dt_softplus": True, "dt_limit": (0.0, 1.0)})
    program = UPDATE.forward(one).program({}, SUPPORTED[arch])
    assert program is not None
    (launch,) = program.launches
    assert resources(build(launch, program.arrays, SUPPORTED[arch])).spills == 0


def test_a_step_with_a_gradient_leaves_its_window_as_it_is() -> None:
    x, dt, A = torch.randn(1, 5, 2, 4), torch.randn(1, 5, 2), -torch.rand(2)
    B, C = torch.randn(1, 5, 1, 3), torch.randn(1, 5, 1, 3)
    _, window = retrograd.ssd_prefill(x[:, :4], dt[:, :4], A, B[:, :4], C[:, :4], dt_softplus=True)
    before = [tensor.clone() for tensor in window]
    newest = x[:, 4].requires_grad_()
    y, _ = retrograd.ssd_step_(window, newest, dt[:, 4], A, B[:, 4], C[:, 4], dt_softplus=True)
    y.sum().backward()
    assert newest.grad is not None
    assert all(map(torch.equal, window, before))


def test_errors_name_the_function_and_the_argument() -> None:
    x, dt, A, B = torch.randn(1, 4, 2, 4), torch.randn(1, 4, 2), -torch.rand(2), torch.randn(1, 4, 1, 3)
    _, window = retrograd.ssd_prefill(x, dt, A, B, B)
    with pytest.raises(ValueError, match=r"^ssd_step_: dt has shape \(1, 3\), expected"):
        retrograd.ssd_step_(window, x[:, 0], torch.randn(1, 3), A, B[:, 0], B[:, 0])
    with pytest.raises(TypeError, match=r"^ssd_step_: window is tuple, expected an instance of SsdWindow"):
        retrograd.ssd_step_((1, 2), x[:, 0], dt[:, 0], A, B[:, 0], B[:, 0])  # type: ignore[arg-type]
