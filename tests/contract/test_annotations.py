"""The annotations of the public functions accept every case of every op and reject a wrong shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError, jaxtyped

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import info, infos
from retrograd.testing.draw import draw, options
from retrograd.testing.jax_call import to_jax

beartype = pytest.importorskip("beartype").beartype  # a GPU machine may not have it

EACH_INFO = pytest.mark.parametrize("info", infos(), ids=lambda info: info.name)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    wrapped: Callable[..., Any] = jaxtyped(typechecker=beartype)(function)
    return wrapped


def small(info: OpInfo) -> list[Case]:
    return [case for case in info.cases if case.tags & {"interpreter", "strided"}] or info.tagged("test")


@EACH_INFO
def test_every_case_passes_the_annotations_in_pytorch(info: OpInfo) -> None:
    function = checked(info.torch)
    for case in small(info):
        function(**draw(case, "cpu", 0), **options(case))


@EACH_INFO
def test_every_case_passes_the_annotations_in_jax(info: OpInfo) -> None:
    function = checked(info.jax())
    for case in [case for case in small(info) if info.is_representative(case)][:4]:
        inputs = {name: to_jax(tensor) for name, tensor in draw(case, "cpu", 0).items()}
        function(**inputs, **case.options)


def test_an_array_of_another_shape_does_not() -> None:
    norm = checked(info("rms_norm").torch)
    with pytest.raises(TypeCheckError):
        norm(torch.ones(2, 8), torch.ones(4))
