"""The names that the text of a failed call needs."""

from math import inf

from retrograd.opinfo.cases import Case, Tensor

from .bad import Bad, Bent
from .dot_product_attention import BesideJax
from .good import Good

__all__ = ["Bad", "Bent", "BesideJax", "Case", "Good", "Tensor", "inf"]
