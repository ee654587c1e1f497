"""The names that the text of a failed call needs."""

from math import inf

from ops.attention.fuzz_dot_product import BesideJax

from retrograd.opinfo.cases import Case, Tensor

from .bad import Bad, Bent
from .good import Good

__all__ = ["Bad", "Bent", "BesideJax", "Case", "Good", "Tensor", "inf"]
