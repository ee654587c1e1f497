"""Arrays that are passed to a kernel as named tuples of a pointer and strides, and several of these as one tuple."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from strided_kernels import COLUMNS, ROWS, Arrays, Rows, program, together
from torch import Tensor

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import arguments, build, signature
from retrograd.core.jax.launch import _leaves
from retrograd.core.program import Program
from retrograd.core.torch.launch import prepare, selection

SM_90 = SUPPORTED["sm_90"]
STRIDES = (COLUMNS * 2, 1), (1, ROWS)  # of a, every other row; of b, transposed
WAYS = pytest.mark.parametrize("way", [lambda made: made, together], ids=["apart", "together"])
Way = Callable[[Program], Program]


class Ends(NamedTuple):
    a: Any
    out: Any


def drawn(device: str = "cpu") -> tuple[Tensor, Tensor]:
    return torch.randn(2 * ROWS, COLUMNS, device=device)[::2], torch.randn(COLUMNS, ROWS, device=device).T


def test_strides_of_one_and_absent_arrays_are_compiled_in() -> None:
    made = program(STRIDES[0], None)
    found = signature(made.launches[0], made.arrays)
    assert dict(found.types)["a"] == Rows("*fp32", "i32", "constexpr")
    assert dict(found.types)["b"] == Rows("constexpr", "constexpr", "constexpr")
    assert {((0, 2), 1), ((1, 0), None), ((1, 1), None)} <= set(found.constants)
    assert {((0, 0), 16), ((0, 1), 16)} <= set(found.hints)


def test_a_tuple_of_arrays_has_their_types_constants_and_hints() -> None:
    made = together(program(STRIDES[0], None))
    found = signature(made.launches[0], made.arrays)
    row = Rows("*fp32", "i32", "constexpr")
    assert dict(found.types)["arrays"] == Arrays(row, Rows("constexpr", "constexpr", "constexpr"), row)
    assert {((0, 0, 2), 1), ((0, 1, 0), None), ((0, 1, 1), None), ((0, 2, 2), 1)} <= set(found.constants)
    assert {((0, 0, 0), 16), ((0, 0, 1), 16), ((0, 2, 0), 16)} <= set(found.hints)


def test_a_tuple_of_arrays_is_one_argument() -> None:
    made = together(program(STRIDES[0], None))
    launch = made.launches[0]
    arrays = Arrays(Rows("a", *STRIDES[0]), Rows(None, 0, 0), Rows("out", COLUMNS, 1))
    assert arguments(launch) == [arrays, ROWS, COLUMNS, 32]
    select = selection(launch, None, {"a": 0, "b": -1, "out": 1})
    assert select([160, 320, None]) == (((160, *STRIDES[0]), (None, 0, 0), (320, COLUMNS, 1)),)
    types = dict(signature(launch, made.arrays).types)
    parameters = [("*fp32", "a"), ("i32", STRIDES[0][0]), ("*fp32", "out"), ("i32", COLUMNS)]
    assert list(_leaves(types["arrays"], arrays)) == parameters


def test_what_is_read_precedes_what_is_written_in_a_tuple_too() -> None:
    made = together(program(*STRIDES))
    assert made.reads_and_writes(made.launches[0], {"a", "b"}) == (["a", "b"], ["out"])
    swapped = replace(made.launches[0], arrays={"a": "out", "b": "b", "out": "a"})
    with pytest.raises(ValueError, match="read before what is written"):
        made.reads_and_writes(swapped, {"a", "b"})


def test_a_field_without_an_array_is_refused() -> None:
    sound = together(program(*STRIDES)).launches[0]
    with pytest.raises(ValueError, match=r"the first parameters are \['a', 'b'\], not \['a', 'out'\]"):
        replace(sound, arrays={"a": "a", "out": "out"})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"rows": Rows}, "^total_of: parameters without a value: pointer, row, column$"),
        ({"rows": Ends}, "^total_of: arrays in several parameters: a, out$"),
        ({"others": Ends}, "^total_of: values without a parameter: others$"),
    ],
    ids=["fields that are no arrays", "arrays given twice", "no parameter"],
)
def test_a_tuple_of_anything_else_is_refused(more: dict[str, Any], text: str) -> None:
    sound = together(program(*STRIDES)).launches[0]
    scalars = {name: value for name, value in sound.scalars.items() if name not in more}
    with pytest.raises(ValueError, match=text):
        arguments(replace(sound, scalars=scalars, together={**sound.together, **more}))


@WAYS
@pytest.mark.compile
@pytest.mark.parametrize("b", [STRIDES[1], None])
def test_it_compiles(b: tuple[int, int] | None, way: Way) -> None:
    made = way(program(STRIDES[0], b))
    assert "ld.global" in build(made.launches[0], made.arrays, SM_90).asm["ptx"]


@WAYS
@pytest.mark.gpu
def test_a_gpu_reads_by_these_strides(way: Way) -> None:
    a, b = drawn("cuda")
    run = prepare(way(program(*STRIDES)), ["a", "b"], ["out"], SM_90, torch.device("cuda", 0))
    assert torch.equal(run([a, b])[0], a + b)
    alone = prepare(way(program(STRIDES[0], None)), ["a"], ["out"], SM_90, torch.device("cuda", 0))
    assert torch.equal(alone([a])[0], a)


@WAYS
@pytest.mark.gpu
def test_jax_passes_them_too(way: Way) -> None:
    import jax

    from retrograd.core.jax.launch import run
    from retrograd.testing.jax_call import to_jax, to_torch

    a, b = torch.randn(ROWS, COLUMNS, device="cuda"), torch.randn(ROWS, COLUMNS, device="cuda")
    made = way(program((COLUMNS, 1), (COLUMNS, 1)))
    (out,) = jax.jit(lambda a, b: run(made, SM_90, [a, b]))(to_jax(a), to_jax(b))
    assert torch.equal(to_torch(out, a.device), a + b)
