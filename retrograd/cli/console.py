"""Shared by the commands: output, errors for bad input, and what this machine has."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from typing import Literal, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from retrograd.core.arch import Arch
from retrograd.opinfo.info import OpInfo
from retrograd.ops import infos

Framework = Literal["torch", "jax"]

# PyTorch and JAX share the GPU in one process; without this, jax would allocate most of its memory at once.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

PIPED_WIDTH = 160  # piped output has no width of its own unless COLUMNS is set
LEAST_TEXT = 16  # columns of text are not folded below this width

out = Console(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH)
err = Console(stderr=True)  # progress and remarks, so that standard output can be piped


def table(title: str, *columns: str | Column) -> Table:
    """An empty table in the common style. A column passed by name is never folded; pass text as a `Column`."""
    all_columns = [Column(column, no_wrap=True) if isinstance(column, str) else column for column in columns]
    return Table(*all_columns, title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def show(content: Table) -> None:
    """Print a table; if it is too wide, print each row as lines of heading and cell, without empty cells."""
    if narrowest(content) <= out.width:
        out.print(content)
        return
    out.print(content.title, style="table.title")
    headings = [str(column.header) for column in content.columns]
    for row in zip(*(column.cells for column in content.columns), strict=True):
        lines = Table.grid(Column(no_wrap=True, style="bold"), Column(overflow="fold"), padding=(0, 2, 0, 0))
        for heading, text in zip(headings, row, strict=True):
            if text:
                lines.add_row(heading, text)
        out.print("", lines, sep="")
    out.print()


def narrowest(content: Table) -> int:
    """The least width at which no name and no number in a table is broken."""
    width = Measurement.get(out, out.options.update(max_width=10**6), content).maximum
    for column in content.columns:
        if not column.no_wrap:
            longest = max((cell_len(Text.from_markup(str(cell)).plain) for cell in column.cells), default=0)
            width -= max(0, longest - LEAST_TEXT)
    return width


def fail(message: str) -> NoReturn:
    """Exit with one line of error and status 2."""
    err.print(f"retrograd: {message}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def named_info(name: str) -> OpInfo:
    """The `OpInfo` of an op; exits if there is none."""
    try:
        return infos.info(name)
    except ValueError as error:
        fail(str(error))


def of_implementation(info: OpInfo, name: str, arch: Arch | None) -> OpInfo:
    """The `OpInfo` with only one implementation, and only the cases that it takes."""
    if arch is None:
        fail(f"--implementation is {name!r}, but no kernel runs on this device")
    try:
        alone = info.variant(only=name)
    except ValueError as error:
        fail(f"{info.name}: {error}")
    return replace(alone, cases=[case for case in alone.cases if alone.programs(case, arch)])


def one_of(name: str, value: str, allowed: Iterable[str]) -> str:
    """The value, if it is allowed; exits otherwise."""
    allowed = list(allowed)
    if value not in allowed:
        fail(f"{name} is {value!r}, expected {' or '.join(allowed)}")
    return value


def has_jax() -> bool:
    """Whether jax is installed; it is not imported."""
    return find_spec("jax") is not None


def chosen_framework(value: str) -> Framework:
    """The framework, if it is installed; exits otherwise."""
    if one_of("--framework", value, ("torch", "jax")) == "torch":
        return "torch"
    if not has_jax():
        fail('--framework is jax, which is not installed; pip install "retrograd[jax]"')
    return "jax"


def has_cuda() -> bool:
    """Whether PyTorch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def chosen_device(value: str | None) -> str:
    """The device, if it exists; by default the GPU, if there is one."""
    device = one_of("--device", value or ("cuda" if has_cuda() else "cpu"), ("cpu", "cuda"))
    need_device(device)
    return device


def need_device(device: str) -> None:
    """Exit if there is no such device."""
    if device == "cuda" and not has_cuda():
        fail("the device is cuda, but PyTorch sees no GPU here")


def jax_has_gpu() -> bool:
    """Whether JAX sees a GPU."""
    import jax

    return jax.default_backend() == "gpu"
