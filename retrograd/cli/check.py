"""`retrograd check`: every result and every gradient against float64, and bitwise against a second run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from retrograd.core.torch.launch import arch_of
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.verify import Check, verify

from .chosen import Cases, Ops, chosen_cases, chosen_infos
from .console import (
    Framework,
    chosen_device,
    chosen_framework,
    err,
    fail,
    has_jax,
    jax_has_gpu,
    of_implementation,
    out,
    show,
    table,
)

Job = tuple[OpInfo, Case, Framework]


def check(
    ops: Ops = None,
    cases: Cases = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. cuda by default if available.")] = None,
    framework: Annotated[str | None, typer.Option(help="torch or jax. Both by default, where installed.")] = None,
    implementation: Annotated[
        str | None, typer.Option(help="Only this implementation, such as triton; needs a GPU.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
) -> None:
    """Verify results, gradients and repeatability on this machine; the exit status is 1 if anything fails."""
    place = chosen_device(device)
    jobs = list(jobs_of(ops, cases, place, frameworks(framework, place), implementation))
    checks: list[tuple[Framework, Check]] = []
    errors: list[str] = []
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err) as progress:
        task = progress.add_task("", total=len(jobs))
        for info, one, kind in jobs:
            progress.update(task, description=f"{info.name} {one.name} ({kind})")
            try:
                checks += [(kind, found) for found in verify(info, one, kind, place, seed)]
            except Exception as error:  # a case that raises fails; the others still run
                errors.append(f"{info.name} {one.name} ({kind}): {type(error).__name__}: {error}")
            progress.advance(task)
    for result_table in tables_of(checks):
        show(result_table)
    for message in errors:
        out.print(f"[bold red]error[/] {escape(message)}", highlight=False)
    failed = sum(not found.passed for _, found in checks)
    for kind in dict.fromkeys(kind for kind, _ in checks):
        own = [found for k, found in checks if k == kind]
        within, repeat = sum(found.error <= found.budget for found in own), sum(found.repeats for found in own)
        out.print(f"{kind} on {place}: {len(own)} quantities, {within} within budget, {repeat} repeat to the bit")
    if failed or errors:
        out.print(f"[bold red]{failed} of {len(checks)} quantities failed, {len(errors)} cases raised an error")
        raise typer.Exit(1)
    out.print("[bold green]all passed")


def frameworks(requested: str | None, device: str) -> list[Framework]:
    """The requested one, or all that are installed and can use the device."""
    if requested is not None:
        chosen = chosen_framework(requested)
        if chosen == "jax" and device == "cuda" and not jax_has_gpu():
            fail("--device is cuda, but jax sees no GPU here")
        return [chosen]
    jax_too = has_jax() and (device == "cpu" or jax_has_gpu())
    return ["torch", "jax"] if jax_too else ["torch"]


def jobs_of(
    ops: list[str] | None, cases: str | None, device: str, kinds: list[Framework], implementation: str | None
) -> Iterator[Job]:
    """The cases to verify, with their op and framework."""
    tags = ("test", "gpu") if device == "cuda" else ("test",)
    chosen = chosen_infos(ops)
    if implementation is not None:
        chosen = [of_implementation(info, implementation, arch_of(torch.device(device, 0))) for info in chosen]
    if cases is None:
        own = {info.name: info.tagged(*tags) for info in chosen}
    else:
        own = chosen_cases({info.name: info.cases for info in chosen}, cases, "")
    for info in chosen:
        for kind in kinds:
            for case in own.get(info.name, ()):
                yield info, case, kind


def tables_of(checks: list[tuple[Framework, Check]]) -> Iterator[Table]:
    """A table for each op and framework, with a line for each quantity; the case's name is only on its first line."""
    for (op, kind), group in groupby(checks, lambda check: (check[1].op, check[0])):
        numbers = [Column(name, justify="right", no_wrap=True) for name in ("error", "budget")]
        result = table(f"{op} in {kind}: errors against float64, relative", "case", "quantity", *numbers, "repeat")
        before = ""
        for _, found in group:
            repeat = "same bits" if found.repeats else "[bold red]differs"
            error = f"{found.error:.2e}" if found.error <= found.budget else f"[bold red]{found.error:.2e}"
            case = "" if found.case == before else found.case
            result.add_row(case, found.quantity, error, f"{found.budget:.2e}", repeat)
            before = found.case
        yield result
