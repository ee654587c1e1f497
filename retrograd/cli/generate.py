"""`retrograd generate`: text from a model that `retrograd train` wrote, printed as it is generated."""

from __future__ import annotations

import codecs
import math
from itertools import chain
from pathlib import Path
from typing import Annotated

import torch
import typer

from retrograd import nn
from retrograd.train.presets import BYTES
from retrograd.train.settings import MOST_SEEDS

from .console import chosen_device, fail


def generate(
    folder: Annotated[Path, typer.Argument(help="A run, or a folder with config.json and model.safetensors.")],
    prompt: Annotated[str, typer.Option(help="The beginning of the text.")] = "def ",
    tokens: Annotated[int, typer.Option(help="Bytes to add.")] = 200,
    temperature: Annotated[float, typer.Option(help="Of the sampling; 0 takes the likeliest byte.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many of the likeliest bytes.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest bytes up to this share.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End after this text; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. cuda by default if available.")] = None,
) -> None:
    """Print a prompt and the model's continuation, byte by byte."""
    chosen = chosen_device(device)
    if not prompt:
        fail("--prompt is empty, expected at least one byte")
    if tokens < 0:
        fail(f"--tokens is {tokens}, expected 0 or more")
    if not 0 <= seed < MOST_SEEDS:
        fail(f"--seed is {seed}, expected 0 to 2^63 - 1")
    if not 0 <= temperature < math.inf:
        fail(f"--temperature is {temperature}, expected a finite number of at least 0")
    if top_k is not None and top_k < 1:
        fail(f"--top-k is {top_k}, expected at least 1")
    if not 0 < top_p <= 1:
        fail(f"--top-p is {top_p}, expected a number above 0, 1 at most")
    if "" in (ends := tuple(stop or ())):
        fail("--stop is empty, expected at least one character")
    try:
        model = nn.load(folder, device=chosen)
    except Exception as error:  # torch, pickle, json and safetensors each raise their own for a broken file
        fail(f"{folder} holds no model that can be read: {' '.join(str(error).split())}")
    if model.config.vocab_size != BYTES:
        fail(f"{folder} holds a model of {model.config.vocab_size} tokens, expected {BYTES}: one for each byte")
    # A character of several bytes is printed once its last byte is known.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    prompt_tokens = torch.tensor([list(prompt.encode(errors="surrogateescape"))], device=chosen)
    drawn = nn.generate(model, prompt_tokens, tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    generated = nn.read_back(drawn)
    last, longest = "", max(map(len, ends), default=0)
    try:
        first = next(generated, None)  # before anything is printed: a model with NaN logits fails here
        typer.echo(prompt.encode(errors="surrogateescape"), nl=False)
        for row in chain(() if first is None else (first,), generated):
            new = decoder.decode(bytes(row))
            typer.echo(printable(new).encode(), nl=False)
            if new and ends:
                last = (last + new)[-longest:]
                if last.endswith(ends):
                    break
    except ValueError as error:
        fail(f"{folder}: {error}")
    typer.echo(decoder.decode(b"", final=True).encode())


def printable(text: str) -> str:
    """The text without control characters, which would change the terminal: a model can generate any byte."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
