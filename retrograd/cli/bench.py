"""`retrograd bench`: device time of an op and its peers, compared with the machine's limits."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Column, Table

from retrograd.bench.peers import Peer
from retrograd.bench.peers import peers as peers_of
from retrograd.bench.results import LIMITS, Row, Speeds, append, latest, line, read
from retrograd.core.torch.launch import arch_of
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo

from .chosen import Cases, Ops, chosen_cases, chosen_infos
from .console import (
    Framework,
    chosen_framework,
    err,
    fail,
    has_cuda,
    jax_has_gpu,
    of_implementation,
    show,
    table,
)


class Job(NamedTuple):
    """What is measured of an op."""

    info: OpInfo
    cases: list[Case]
    peers: list[Peer]


def bench(
    ops: Ops = None,
    peers: Annotated[str | None, typer.Option(help="Peers, comma-separated; '' for none. All by default.")] = None,
    cases: Cases = None,
    framework: Annotated[str | None, typer.Option(help="torch or jax. torch by default.")] = None,
    implementation: Annotated[str | None, typer.Option(help="Only this implementation, such as triton.")] = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="JSON lines are added to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the results of one op as a PNG.")] = None,
    plot_only: Annotated[bool, typer.Option("--plot-only", help="Measure nothing: draw what --out holds.")] = False,
) -> None:
    """Measure ops and their peers on this machine's GPU, and draw the results."""
    chosen = chosen_infos(ops)
    if plot is not None and len(chosen) > 1:
        fail(f"--plot draws one op, not {', '.join(info.name for info in chosen)}")
    if plot is not None and find_spec("matplotlib") is None:
        fail('--plot needs matplotlib; pip install "retrograd[bench]"')
    if plot_only:
        if plot is None:
            fail("--plot-only needs --plot FILE.png")
        rows = stored_rows(chosen[0], out_file)
    else:
        if implementation is not None:
            import torch

            arch = arch_of(torch.device("cuda", 0)) if has_cuda() else None
            chosen = [of_implementation(info, implementation, arch) for info in chosen]
        kind = chosen_framework(framework or "torch")
        rows, failed = measured_rows(jobs_of(chosen, cases, peers, kind), kind, out_file)
        for info in chosen:
            show(table_of([row for row in rows if row.op in (info.name, LIMITS)], framework))
        if failed:
            err.print(f"retrograd itself failed on {', '.join(failed)}", style="bold red", markup=False)
            raise typer.Exit(1)
    if plot is not None:
        from retrograd.bench.plot import draw

        try:
            draw(rows, plot, framework)
        except ValueError as error:
            fail(str(error))
        err.print(f"drawn: {plot}", highlight=False)


def jobs_of(chosen: Sequence[OpInfo], cases: str | None, peers: str | None, framework: str) -> list[Job]:
    """What to measure of each op; exits if a peer is one of none of the ops."""
    own = chosen_cases({info.name: info.tagged("bench") for info in chosen}, cases or "*", "benchmark ")
    known = {info.name: {peer.name: peer for peer in peers_of(info.name, framework)} for info in chosen}
    named = None if peers is None else [name for name in peers.split(",") if name]
    for name in named or ():
        if not any(name in found for found in known.values()):
            listed = ", ".join(dict.fromkeys(peer for found in known.values() for peer in found)) or "none"
            fail(f"peer is {name!r}, expected one of the {framework} peers of {' or '.join(known)}: {listed}")
    return [
        Job(
            info,
            own[info.name],
            [peer for name, peer in known[info.name].items() if named is None or name in named],
        )
        for info in chosen
        if info.name in own
    ]


def stored_rows(info: OpInfo, path: Path | None) -> list[Row]:
    """The op's rows in a results file."""
    if path is None:
        fail("--plot-only needs --out FILE.jsonl, the results to draw")
    try:
        rows = [row for row in read(path) if row.op in (info.name, LIMITS)]
    except (OSError, ValueError) as error:
        fail(f"{path} cannot be read: {error}")
    if not any(row.op == info.name for row in rows):
        fail(f"{path} holds no row of {info.name}")
    return rows


def measured_rows(jobs: Sequence[Job], framework: Framework, path: Path | None) -> tuple[list[Row], list[str]]:
    """The rows of a new run, each printed and written once it is measured, and the cases where retrograd failed."""
    if not (jax_has_gpu() if framework == "jax" else has_cuda()):
        fail(f"bench measures on a GPU, and {framework} sees none here; --plot-only draws results that are there")
    rows: list[Row] = []

    def emit(row: Row) -> None:
        rows.append(row)
        if path is not None:
            append(path, row)
        err.print(line(row, Speeds(rows)), markup=False, highlight=False, soft_wrap=True)

    def note(text: str) -> None:
        err.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)

    if framework == "jax":
        from retrograd.bench.run_jax import run
    else:
        from retrograd.bench.run import run
    failed = [name for job in jobs for name in run(job.info, job.cases, job.peers, emit, note)]
    return rows, failed


def table_of(rows: Sequence[Row], framework: str | None) -> Table:
    """A line for each case and pass: the limit, then the speed and share of the limit of each impl."""
    speeds = Speeds(rows)
    timed = [row for row in latest(rows) if row.fraction is not None and row.op != LIMITS]
    timed = [row for row in timed if framework in (None, row.framework)]
    impls = list(dict.fromkeys((row.framework, row.impl) for row in timed))
    units = {speed[1] for row in timed if (speed := speeds.of(row))}
    title = (
        f"{timed[0].op} on {timed[0].gpu}: {' or '.join(sorted(units))}, and the share of the limit" if timed else ""
    )
    headings = [impl if kind == "torch" else f"{impl} ({kind})" for kind, impl in impls]
    columns = [Column(heading, justify="right", no_wrap=True) for heading in headings]
    result = table(title, "case", "pass", "bound", *columns)
    cells = {(row.case, row.pass_, row.framework, row.impl): cell(row, speeds) for row in timed}
    for (case, pass_), bound in {(row.case, row.pass_): row.bound for row in timed}.items():
        result.add_row(case, pass_, bound, *(cells.get((case, pass_, *impl), "") for impl in impls))
    return result


def cell(row: Row, speeds: Speeds) -> str:
    """Speed and share of the limit; ours in bold."""
    speed = speeds.of(row)
    if speed is None or row.fraction is None:
        return ""
    text = f"{speed[0]:.0f} {row.fraction:4.0%}"
    return f"[bold]{text}[/]" if row.impl == "retrograd" else text
