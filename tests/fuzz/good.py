"""A good call: every output and gradient against the op's reference in float64, bitwise equal on all paths."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from checks.contract import drawn, named_outputs
from checks.integration import PassThrough
from checks.layouts import LAYOUTS, REPEATING, laid_out
from hypothesis import strategies as st
from ops import file_of
from torch import Tensor

from retrograd.core.torch.launch import DTYPES
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import info
from retrograd.testing.budget import FEW_DRAWS, SLACK, draws_for
from retrograd.testing.compare import assert_same_bits, assert_within_budget, same_form
from retrograd.testing.draw import Arrays, call, differentiable, options, output_name, plain_and_exact, upcast
from retrograd.testing.poison import poisoned
from retrograd.testing.verify import Framework, run

from .text import Pasted

DENSE, NEGATED = "dense", "negated"
WAYS = ("directly", "under a dispatch mode", "as a subclass")


class Subclass(Tensor):
    """A tensor subclass, so that PyTorch dispatches its calls through the subclass."""


@dataclass(frozen=True, repr=False)
class Good(Pasted):
    """A call that has to work; its repr is Python that repeats it.

    Attributes:
        op: the op's name.
        case: its arguments.
        layouts: array -> its layout; the name of a result means its gradient.
        way: the PyTorch path that the call is repeated on.
        seed: of the values.
        framework: of the call.
    """

    op: str
    case: Case
    layouts: Mapping[str, str] = field(default_factory=dict)
    way: str = "directly"
    seed: int = 0
    framework: Framework = "torch"

    def check(self) -> None:
        """Assert that the call works."""
        op, case = info(self.op), self.case
        draws: list[tuple[Arrays, Arrays, Arrays]] = []
        for i in range(min(draws_for(case), FEW_DRAWS)):
            inputs, gradients = drawn(op, case, "cpu", self.seed * 1000 + i)
            inputs = self.laid_out(inputs)
            gradients = list(self.laid_out(named_outputs(gradients)).values())
            plain, exact = plain_and_exact(op.reference, case, inputs, gradients, op.plain)
            found = run(op, case, self.framework, inputs, gradients)
            same_form(op, case, found, plain)
            draws.append(
                (found, as_in_float32(op, case, inputs, gradients, exact) if is_double(case) else plain, exact)
            )
            if i == 0 and self.framework == "torch":
                assert_same_bits(repeated(self.way, op, case, inputs, gradients), found, f"{self.op}: {self.way}")
        assert_within_budget(draws, self.op, SLACK)

    def laid_out(self, tensors: Arrays) -> Arrays:
        """The tensors, each in its layout."""
        return {name: lay(self.layouts.get(name, DENSE), tensor) for name, tensor in tensors.items()}


def as_in_float32(op: OpInfo, case: Case, inputs: Arrays, gradients: list[Tensor], exact: Arrays) -> Arrays:
    """The error budget in float64, where the reference has no error: 2^-29 of its error in float32.

    If another order of additions rounds more in every dtype, the op's file defines `in_float32` with that order.
    """

    def narrow(tensor: Tensor) -> Tensor:
        dtype = torch.complex64 if tensor.is_complex() else torch.float32
        return (tensor.to(dtype) if differentiable(tensor) else tensor).contiguous()

    narrowed = {name: narrow(tensor) for name, tensor in inputs.items()}
    function = getattr(file_of(op.name, "fuzz"), "in_float32", op.reference)
    rounded = call(function, narrowed, options(case, torch.float32), [narrow(g) for g in gradients])
    found = {name: (upcast(tensor), exact[name]) for name, tensor in rounded.items()}
    return {name: torch.where(t == right, right, right + (t - right) * 2.0**-29) for name, (t, right) in found.items()}


def lay(layout: str, tensor: Tensor) -> Tensor:
    """The tensor in a layout: one of the contract's, or negated in memory with PyTorch's lazy negation."""
    if layout == NEGATED and tensor.is_floating_point():
        return torch._neg_view(-tensor)
    return laid_out(layout, {"": tensor})[""] if layout in LAYOUTS else tensor


def repeated(way: str, op: OpInfo, case: Case, inputs: Arrays, gradients: list[Tensor]) -> Arrays:
    """The same call on one of WAYS."""
    if way == "as a subclass":
        inputs = {name: tensor.as_subclass(Subclass) for name, tensor in inputs.items()}
    with poisoned(), PassThrough() if way == "under a dispatch mode" else nullcontext():
        outputs = call(op.torch, inputs, options(case), gradients)
    return {name: tensor.as_subclass(Tensor) for name, tensor in outputs.items()}


def cases_of(op: str) -> st.SearchStrategy[Case]:
    """The good calls of an op: `cases` of `tests/ops/<op>/fuzz.py`; the op's small cases where it has none."""
    file, one = file_of(op, "fuzz"), info(op)
    small = [case for case in one.tagged("test") if one.is_representative(case)]
    cases: st.SearchStrategy[Case] = st.sampled_from(small) if file is None else file.cases()
    return cases.map(lambda case: replace(case, shape={}))  # arrays that the call does not read are not printed


@st.composite
def good(draw: st.DrawFn, op: str) -> Good:
    """A good call of an op, with tensors of any layout."""
    case = draw(cases_of(op))
    names = (*case.inputs, output_name(0), output_name(1))
    never = REPEATING if info(op).gradients_only else frozenset[str]()
    layouts = {}
    for name in names:
        allowed = (DENSE, NEGATED, *(layout for layout in LAYOUTS if name not in case.inputs or layout not in never))
        layouts[name] = draw(st.sampled_from(allowed))
    layouts = {name: layout for name, layout in layouts.items() if layout != DENSE}
    return Good(op, case, layouts, draw(st.sampled_from(WAYS)), draw(st.integers(0, 10**6)))


@st.composite
def good_in_jax(draw: st.DrawFn, op: str) -> Good:
    """A good call of an op in JAX, whose arrays are dense and never float64 unless x64 is enabled."""
    case = draw(cases_of(op).filter(lambda case: not is_double(case)))
    return Good(op, case, seed=draw(st.integers(0, 10**6)), framework="jax")


def is_double(case: Case) -> bool:
    """Whether an argument is float64 or complex128."""
    return any(DTYPES[tensor.dtype] in (torch.float64, torch.complex128) for tensor in case.inputs.values())
