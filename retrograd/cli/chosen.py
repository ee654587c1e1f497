"""The ops and cases that a command names, in the same way for all commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from retrograd.opinfo.cases import Case, matching
from retrograd.opinfo.info import OpInfo
from retrograd.ops import infos

from .console import fail, named_info

Ops = Annotated[list[str] | None, typer.Argument(help="The ops. All by default.")]
Cases = Annotated[str | None, typer.Option(help="Patterns of names of cases, comma-separated. All by default.")]


def chosen_infos(ops: Sequence[str] | None) -> list[OpInfo]:
    """The `OpInfo` of the ops, each once, or all; exits if there is no such op."""
    return [named_info(name) for name in dict.fromkeys(ops or infos.NAMES)]


def chosen_cases(cases: Mapping[str, Sequence[Case]], patterns: str, kind: str) -> dict[str, list[Case]]:
    """The cases that match any of the patterns, of each op that has one; exits if a pattern matches none.

    Args:
        cases: op -> the cases to choose from.
        patterns: comma-separated.
        kind: what the error calls the cases, with a space after it.
    """
    found = {op: matching(own, patterns.split(",")) for op, own in cases.items()}
    unknown = [one for one in patterns.split(",") if not any(matching(own, [one]) for own in cases.values())]
    if unknown:
        some = ", ".join(case.name for own in cases.values() for case in own[:3])
        expected = f"no {kind}case of {' or '.join(cases)}; there are {some}, ..."
        fail(f"--cases is {','.join(unknown)!r}, which matches {expected}")
    return {op: own for op, own in found.items() if own}
