"""Sums in one fixed order, that of a binary tree over the terms' numbers.

    sum(x_0 .. x_{n-1}) = sum(x_0 .. x_{p-1}) + sum(x_p .. x_{n-1}),    p the largest power of two below n

A run of 2^j terms that begins at a multiple of 2^j is a node of the tree. So it may be added anywhere, and the whole
sum has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Tree(Generic[T]):
    """A sum to which terms are added one after another; it holds at most log2(n) + 1 partial sums.

    Args:
        add: the sum of two; it may overwrite the first.
    """

    def __init__(self, add: Callable[[T, T], T]) -> None:
        self._add = add
        self._nodes: list[tuple[int, T]] = []  # the number of terms in each, and their sum

    def append(self, term: T) -> None:
        """The next term."""
        size = 1
        while self._nodes and self._nodes[-1][0] == size:
            _, before = self._nodes.pop()
            term, size = self._add(before, term), 2 * size
        self._nodes.append((size, term))

    def total(self) -> T:
        """The sum of all terms, of which there is at least one; afterwards there are none."""
        _, total = self._nodes.pop()
        while self._nodes:
            _, before = self._nodes.pop()
            total = self._add(before, total)
        return total


def tree_sum(terms: Iterable[T], add: Callable[[T, T], T]) -> T:
    """The sum of terms, at least one, in the order of the tree; `add` may overwrite its first argument."""
    tree = Tree(add)
    for term in terms:
        tree.append(term)
    return tree.total()


def first_half(count: int) -> int:
    """How many terms are below the root's first branch: the largest power of two below `count`, which is at least 2."""
    return 1 << ((count - 1).bit_length() - 1)


def is_power_of_2(number: int) -> bool:
    """Whether it is 1, 2, 4, ..."""
    return number > 0 and not number & (number - 1)
