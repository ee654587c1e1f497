"""The names that the text of a failed call needs."""

from math import inf

from retrograd.core.cases import Case, Tensor

from .bad import Bad, Bent
from .good import Good

__all__ = ["Bad", "Bent", "Case", "Good", "Tensor", "inf"]
