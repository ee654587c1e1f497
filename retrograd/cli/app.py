"""The commands, put together."""

from __future__ import annotations

import typer

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
