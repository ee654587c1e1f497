"""How calls are drawn and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def each(calls: st.SearchStrategy[Any], number: float, seed: int, check: Callable[[Any], None]) -> None:
    """Draw this number of calls and check each; a failure is minimised and printed as Python that repeats it."""

    @hypothesis.seed(seed)
    @settings(
        # The first draw is the smallest call, whose arrays are empty.
        max_examples=max(2, round(number)),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(calls)
    def drawn(call: Any) -> None:
        hypothesis.note(f"To make it again, in tests/:\n\nfrom fuzz.paste import *\n{call!r}.check()\n")
        check(call)

    drawn()
