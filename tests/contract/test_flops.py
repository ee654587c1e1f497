"""The FLOPs that PyTorch's FLOP counter reports for an op."""

from __future__ import annotations

import pytest
from checks import contract
from parameters import CASE, FEW, SMALL, each_case
from torch.utils.flop_counter import FlopCounterMode

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.draw import call, options


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, cuda=SMALL, only=FEW))
def test_the_flop_counter_counts_both_passes(info: OpInfo, case: Case, device: str, seed: int) -> None:
    inputs, gradients = contract.drawn(info, case, device, seed)
    with FlopCounterMode(display=False) as counter:
        call(info.torch, inputs, options(case), gradients)
    assert counter.get_total_flops() == info.flops(case, "fwd") + info.flops(case, "bwd")
