"""The command line application with all its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from retrograd.bench.environment import versions

from .bench import bench
from .check import check
from .generate import generate
from .info import info
from .train import train

app = typer.Typer(
    help="Training kernels for sequence models, reproducible to the bit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(info)
app.command()(check)
app.command()(bench)
app.command()(train)
app.command()(generate)


def show_version(requested: bool) -> None:
    """Print the versions that an error report needs, in one line, and exit."""
    if requested:
        typer.echo(", ".join(f"{name} {version}" for name, version in versions(("torch", "triton", "jax")).items()))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show versions and exit.")
    ] = False,
) -> None:
    """The options before a command."""
