"""The record of gated_delta_rule for the contract."""

from __future__ import annotations

from retrograd.opinfo.info import OpInfo

from . import reference
from .cases import CASES
from .op import BORDER, OP

INFO = OpInfo.of(
    OP,
    cases=CASES,
    reference=reference.gated_delta_rule,
    plain=reference.plain,
    continues=BORDER,
    draws=4,  # the largest errors of the gradient of g are those of single elements
    tensor_core_sums=True,
    # Rows of equal numbers have hardly a gradient where they are normalised: what cancels has no digits left.
    gradients_only=frozenset({"broadcast_columns", "broadcast"}),
)
