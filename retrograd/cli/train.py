"""`retrograd train`: a small byte-level language model on the source of the standard library, or on your text."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError

from retrograd import nn
from retrograd.train import (
    ARCHITECTURES,
    DEFAULT,
    LostError,
    Ranks,
    Row,
    Settings,
    Trainer,
    alone,
    check_shard,
    free,
    joined,
    parameters,
    reproducible,
    start,
    stdlib,
    text_at,
)
from retrograd.train import preset as preset_of

from .console import chosen_device, err, fail, need_device, out
from .generate import printable

PROMPTS = ("def ", "class ", "import ")
SAMPLE_BYTES = 200
SAMPLE_TEMPERATURE = 0.7
SLOTS = 8  # of a batch, on several processes


def train(
    data: Annotated[
        Path | None, typer.Option(help="A text file or a folder. The standard library's source by default.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="cpu, gpu or tiny. gpu by default if available.")] = None,
    arch: Annotated[
        str | None, typer.Option(help=f"{', '.join(ARCHITECTURES[:-1])} or {ARCHITECTURES[-1]}. {DEFAULT} by default.")
    ] = None,
    framework: Annotated[str | None, typer.Option(help="torch or jax. torch by default.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps. The preset's by default.")] = None,
    time: Annotated[int | None, typer.Option(help="Bytes of a sequence. The preset's by default.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of parameters and data order. 0 by default.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of activations: float32 or bfloat16. The preset's by default.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. cuda by default if available.")] = None,
    compile_: Annotated[bool | None, typer.Option("--compile", help="Run the model through torch.compile.")] = None,
    slots: Annotated[
        int | None,
        typer.Option(help="Parts of a batch, for several processes. 1 by default; under torchrun up to 8."),
    ] = None,
    context_parallel: Annotated[
        int | None, typer.Option(help="Processes that divide the bytes of each sequence, under torchrun. 1 by default.")
    ] = None,
    shard: Annotated[
        bool, typer.Option("--shard", help="Divide parameters over processes, under torchrun; bits are the same.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Of the run's folder. <preset>-<seed> by default.")] = None,
    out_folder: Annotated[Path | None, typer.Option("--out", help="Where runs are kept. runs/ by default.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
) -> None:
    """Train a byte-level language model; samples are printed, the rest is written to runs/<name>/."""
    options = {
        "data": None if data is None else str(data),
        "preset": preset,
        "arch": arch,
        "framework": framework,
        "steps": steps,
        "time": time,
        "seed": seed,
        "dtype": dtype,
        "device": device,
        "compile": compile_,
        "slots": slots,
        "context-parallel": context_parallel,
    }
    need("matplotlib", extra="train")
    if resume is not None and (name is not None or out_folder is not None):
        fail("--name and --out are for a new run, --resume for one that is there: expected one of them")
    with ExitStack() as stack:
        if resume is not None:
            folder, settings = resume, old_run(options, resume)
            ranks = stack.enter_context(joined(settings.device))
        else:
            ranks = stack.enter_context(joined(chosen_device(device)))
            new = new_run(options, name, out_folder or Path("runs"), ranks, shard) if ranks.first else None
            folder = ranks.of_first(new)
            settings = old_run({}, folder)
        stack.enter_context(exit_on_failure(folder))
        stack.enter_context(reproducible(settings.threads))
        try:
            if ranks.first:
                stack.enter_context(alone(folder))
            trainer = Trainer(folder, settings, ranks, shard)
        except (ValueError, OSError) as error:
            fail(str(error))
        stopped = train_with_bar(trainer)
        if ranks.first:
            verdict = trainer.finish() if stopped is None else None
            trainer.draw()
            if verdict is not None:
                show_results(trainer, verdict)
    if not ranks.first:
        raise typer.Exit(0 if stopped is None else 128 + stopped)
    if stopped is not None:
        say(err, f"Stopped and saved at step {trainer.step}. {how_to_go_on(folder)}")
        raise typer.Exit(128 + stopped)
    say(out, f"\n{folder}/ has curve.png, metrics.jsonl, model.safetensors. More text:")
    say(out, f'    {program()} generate {shlex.quote(str(folder))} --prompt "def "')


@contextmanager
def exit_on_failure(folder: Path) -> Iterator[None]:
    """Exit with one line, not a traceback, if training fails or is interrupted immediately."""
    try:
        yield
    except FloatingPointError as error:
        say(err, f"retrograd: {error}")
        raise typer.Exit(1) from None
    except LostError as error:
        say(err, f"retrograd: {error}\n{how_to_go_on(folder)}, on as many processes as are left")
        raise typer.Exit(1) from None
    except torch.OutOfMemoryError:
        say(err, "retrograd: the GPU's memory is too small for this preset; --preset cpu is smaller")
        raise typer.Exit(1) from None
    except (OSError, SafetensorError) as error:  # such as a full disk
        say(err, f"retrograd: {error}\n{how_to_go_on(folder)}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say(err, f"Stopped; what came after the last checkpoint will be done again. {how_to_go_on(folder)}")
        raise typer.Exit(128 + signal.SIGINT) from None


def how_to_go_on(folder: Path) -> str:
    """The command that resumes a run."""
    return f"To go on:\n    {program()} train --resume {shlex.quote(str(folder))}"


def say(console: Console, text: str) -> None:
    """Print text without markup or wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def new_run(options: Mapping[str, Any], name: str | None, out_folder: Path, ranks: Ranks, shard: bool) -> Path:
    """Create the folder of a new run, with its text and settings."""
    device = chosen_device(options["device"])
    if options["compile"]:
        need_compiler(device)
    if options["framework"] == "jax":
        need("jax", "optax", extra="train-jax")
    preset_name = options["preset"] or ("gpu" if device == "cuda" else "cpu")
    seed = options["seed"] or 0
    if name is not None and (Path(name).name != name or name in ("", "..")):
        fail(f"--name is {name!r}, expected the name of a folder; --out says where it lies")
    try:
        arch, framework = options["arch"] or DEFAULT, options["framework"] or "torch"
        preset = preset_of(preset_name, arch)
        changed = {key: options[key] for key in ("steps", "time", "dtype") if options[key] is not None}
        split = stdlib() if options["data"] is None else text_at(Path(options["data"]))
        settings = Settings(
            name=preset_name,
            preset=replace(preset, **changed),
            data=options["data"],
            source=split.source,
            arch=arch,
            framework=framework,
            seed=seed,
            device=device,
            compile=bool(options["compile"]),
            threads=torch.get_num_threads(),
            slots=options["slots"] or (1 if ranks.world == 1 else math.gcd(SLOTS, preset.batch)),
            context_parallel=1 if (parts := options["context-parallel"]) is None else parts,
        )
        ranks.slots(settings.slots, settings.context_parallel)
        if shard:
            check_shard(settings)
        own = "-".join([preset_name, *([arch] if options["arch"] else []), str(seed)])
        folder = free(out_folder / own) if name is None else out_folder / name
        if folder.exists():
            fail(f"{folder} exists; --resume {folder} goes on with it, another --name makes another run")
        start(folder, settings, split)
    except (ValueError, OSError) as error:
        fail(str(error))
    return folder


def old_run(options: Mapping[str, Any], folder: Path) -> Settings:
    """The settings of an existing run; exits if a requested option differs from them."""
    try:
        settings = Settings.read(folder)
    except (ValueError, OSError) as error:
        fail(str(error))
    preset = settings.preset
    expected = {
        "data": settings.data,
        "preset": settings.name,
        "arch": settings.arch,
        "framework": settings.framework,
        "steps": preset.steps,
        "time": preset.time,
        "seed": settings.seed,
        "dtype": preset.dtype,
        "device": settings.device,
        "compile": settings.compile,
        "slots": settings.slots,
        "context-parallel": settings.context_parallel,
    }
    for option, value in options.items():
        if value is not None and value != expected[option]:
            fail(f"--{option} is {value!r}, but the run in {folder} has {expected[option]!r}; a run keeps its settings")
    need_device(settings.device)
    if settings.framework == "jax":
        need("jax", "optax", extra="train-jax")
    if settings.compile:
        need_compiler(settings.device)
    return settings


def need(*packages: str, extra: str) -> None:
    """Exit if a package of an extra is not installed."""
    for package in packages:
        if find_spec(package) is None:
            fail(f'{package} is not installed; pip install "retrograd[{extra}]"')


def need_compiler(device: str) -> None:
    """Exit if torch.compile has no compiler for a device."""
    if device == "cpu" and shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        fail(f"--compile needs a C++ compiler on a CPU, but {compiler} is not there; CXX names another")


def train_with_bar(trainer: Trainer) -> int | None:
    """Train; returns the number of the signal that stopped it, or None."""
    settings, preset, ranks = trainer.settings, trainer.preset, trainer.ranks
    if not ranks.first:
        with stopping(quiet=True) as signals:
            trainer.run(lambda row: None, lambda: bool(signals))
        return stop_of(trainer, signals)
    about = f"{settings.arch}, {parameters(trainer.model):,} parameters on {settings.device}, {preset.dtype}"
    say(err, f"{trainer.folder}: {about}" + (f", {ranks.world} processes" if ranks.world > 1 else ""))
    say(err, f"text: {settings.source}")
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=err) as progress, stopping() as signals:
        task = progress.add_task("", total=preset.steps, completed=trainer.step)
        smooth: float | None = None

        def report(row: Row) -> None:
            nonlocal smooth
            if "loss" in row:
                smooth = row["loss"] if smooth is None else 0.95 * smooth + 0.05 * row["loss"]
                progress.update(
                    task, completed=row["step"], description=f"loss {smooth:.3f}  {row['tokens_per_s']:,} tokens/s"
                )
            else:
                bits = row["held_out_bits_per_byte"]
                progress.console.print(f"step {row['step']}: {bits:.3f} bits per byte held out", highlight=False)

        trainer.run(report, lambda: bool(signals))
    return stop_of(trainer, signals)


def stop_of(trainer: Trainer, signals: Sequence[int]) -> int | None:
    """The number of the signal that stopped a run before its end, here or in another process; None if none did."""
    if trainer.step == trainer.preset.steps:
        return None
    return signals[0] if signals else int(signal.SIGTERM)


@contextmanager
def stopping(quiet: bool = False) -> Iterator[list[int]]:
    """The list of stop signals received so far; the second signal of a kind ends the process at once."""
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        signal.signal(number, before[number])
        if not quiet:
            err.print("stopping after this step", style="yellow")

    before = {int(number): signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_results(trainer: Trainer, verdict: Row) -> None:
    """Print both models' bits per byte, and samples."""
    bits, bigram, size = (verdict[key] for key in ("held_out_bits_per_byte", "bigram_bits_per_byte", "held_out_bytes"))
    out.print(f"\nheld out, {size:,} bytes: {bits:.3f} bits per byte; a bigram model {bigram:.3f}", highlight=False)
    model = trainer.model
    device = model.lm_head.weight.device
    for prompt in PROMPTS:
        prompt_tokens = torch.tensor([list(prompt.encode())], device=device)
        seed = trainer.settings.seed
        generated = nn.generate(model, prompt_tokens, SAMPLE_BYTES, temperature=SAMPLE_TEMPERATURE, seed=seed)
        text = prompt + printable(bytes(chain(*nn.read_back(generated))).decode(errors="replace"))
        out.rule()
        say(out, text)
    out.rule()


def program() -> str:
    """This command, as the user can type it."""
    typed = sys.argv[0]
    if os.path.basename(typed) != "retrograd" or shutil.which("retrograd") == os.path.abspath(typed):
        return "retrograd"
    return os.path.relpath(typed)
