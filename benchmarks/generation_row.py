"""The rows of one process of generate.py: generated tokens, prefill, a training step, or the rate of a copy."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from generation_bytes import moved
from generation_impls import DTYPE, MAKERS, Generation, called_back, device, language_model, random_tokens
from generation_shapes import EXACT, LIMITS, NN, PREFILL, READ, TOKEN, TRAIN, TRANSFORMER, TRANSFORMERS, Job, Setting
from model_torch import next_token_loss
from own_process import Row
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from retrograd.bench import limits
from retrograd.bench.environment import versions
from retrograd.bench.measure import GPU_CLOCK
from retrograd.nn import LanguageModel, generate

Ready = Callable[[], Any]  # called before the first time is measured; returns when no other process works


def rows(job: Job, setting: Setting, seconds: float, peers: str | None, ready: Ready) -> Iterator[Row]:
    """Prepare a job, call `ready`, and yield its rows, each as soon as it is measured.

    Args:
        job: what is measured.
        setting: sizes.
        seconds: a time after which no further run of a row begins.
        peers: a folder with mamba_ssm and causal_conv1d.
        ready: see `Ready`.
    """
    if peers:
        sys.path.insert(0, peers)
    if job.impl == TRANSFORMERS and job.model != TRANSFORMER and peers:
        import causal_conv1d  # noqa: F401  # here a missing peer is an error, in transformers a warning
        import mamba_ssm.ops.triton.selective_state_update  # noqa: F401
    for row in MEASURES[job.which](job, setting, partial(repeated, seconds=seconds, most=setting.runs), ready):
        yield row | {"gpu": gpu(), "versions": versions(packages(job))}


Repeated = Callable[[Callable[[], float]], list[float]]


def repeated(run: Callable[[], float], seconds: float, most: int) -> list[float]:
    """The results of at least one run."""
    began = time.perf_counter()
    found = [run()]
    while len(found) < most and time.perf_counter() - began < seconds:
        found.append(run())
    return found


def token_rows(job: Job, setting: Setting, times: Repeated, ready: Ready) -> Iterator[Row]:
    """The time of a generated token; for `nn.generate` also with every token read on the host."""
    own = MAKERS[job.impl](setting, job.model, job.impl, job.batch)
    own.run(setting.generated, ignored)  # compiles all that a run needs
    wait()
    gc.collect()
    ready()
    runs = times(partial(token_ms, own, setting))
    if job.impl == NN and own.tokens is not None:
        on_host = own._replace(impl=READ, run=called_back(read(own.tokens)))
        yield token_row(job, setting, on_host, times(partial(token_ms, on_host, setting)))
    # Last, since a profiler may leave later launches slower.
    kernels_ms = device_ms(own, setting, job.model)
    timing = {} if kernels_ms is None else {"device_ms": kernels_ms, "timing": "kernels"}
    yield token_row(job, setting, own, runs) | timing


def read(tokens: Callable[[int], Any]) -> Callable[[int], Iterator[list[int]]]:
    """An iterator whose tokens are taken to Python, one by one."""
    return lambda count: (own.tolist() for own in tokens(count))


def token_row(job: Job, setting: Setting, own: Generation, runs: list[float]) -> Row:
    """The row of runs, with the bytes that a token has to move."""
    least = moved(setting.configs[job.model], job.batch, setting.keys(job.model))
    sizes = {"B": job.batch, "prompt": setting.prompt_of(job.model), "warm_up": setting.warm_up}
    return basic(job, own.impl, sizes | {"tokens": setting.tokens}, runs) | {
        "device_ms": None,
        "bound": "bytes",
        "weight_bytes": least.weights,
        "state_read_bytes": least.state_read,
        "state_written_bytes": least.state_written,
        "bytes": least.all,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device() == "cuda" else None,
        "kernels": own.kernels,
    }


def basic(job: Job, impl: str, shape: dict[str, int], runs: list[float]) -> Row:
    """The fields that all rows have; `wall_ms` is the median of the runs."""
    return {
        "op": "generate",
        "case": job.model,
        "shape": shape,
        "dtype": str(DTYPE).removeprefix("torch."),
        "pass": job.which,
        "impl": impl,
        "framework": "torch",
        "wall_ms": rounded(statistics.median(runs)),
        "wall_ms_runs": [rounded(ms) for ms in runs],
    }


def token_ms(own: Generation, setting: Setting) -> float:
    """Milliseconds of a token by the wall clock, in a run whose first tokens do not count."""
    times: list[float] = []

    def seen(number: int) -> None:
        if number + 1 in (setting.warm_up, setting.generated):
            wait()
            times.append(time.perf_counter())

    own.run(setting.generated, seen)
    start, end = times
    return 1000 * (end - start) / setting.tokens


def device_ms(own: Generation, setting: Setting, model: str) -> float | None:
    """Milliseconds of a token's kernels by a profiler; None without a GPU, or if the profiler fails."""
    if device() != "cuda":
        return None
    try:
        return profiled_ms(own, setting, model)
    except Exception:  # the wall clock's time is known, and shall not be lost
        traceback.print_exc()
        return None


def profiled_ms(own: Generation, setting: Setting, model: str) -> float | None:
    """The same, with the profiler's errors; None if it saw no kernel."""
    first = setting.first_profiled(model)
    last = first + setting.profiled
    recorded = profile(activities=[ProfilerActivity.CUDA])

    def seen(number: int) -> None:
        if number == first:
            wait()
            recorded.start()
        elif number == last:
            wait()
            recorded.stop()

    own.run(last + 1, seen)
    total = kernels_ms(recorded)
    return rounded(total / setting.profiled) if total else None


def kernels_ms(recorded: profile) -> float:
    """Milliseconds in which a kernel ran."""
    ranges = [event.time_range for event in recorded.events() if event.device_type == DeviceType.CUDA]
    return busy((one.start, one.end) for one in ranges) / 1000


def busy(ranges: Iterable[tuple[float, float]]) -> float:
    """The time in some of these ranges; kernels that begin before the one before them has ended overlap."""
    total, until = 0.0, -math.inf
    for start, end in sorted(ranges):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


@torch.no_grad()
def prefill_rows(job: Job, setting: Setting, times: Repeated, ready: Ready) -> Iterator[Row]:
    """The time until the first token after a long prompt, and that of the forward pass of training on it."""
    config = setting.configs[job.model]
    model, tokens = language_model(config, job.impl == EXACT), random_tokens(config, job.batch, setting.prefill)

    def first_token() -> Tensor:
        return next(iter(generate(model, tokens, 1, temperature=0.0, seed=0)))

    def forward() -> Tensor:
        return model(tokens)

    calls = (first_token, forward)
    for call in (*calls, *calls):
        timed(call)
    ready()
    # In turns, since the host's speed changes.
    forward_runs: list[float] = []

    def one_of_each() -> float:
        forward_runs.append(timed(forward))
        return timed(first_token)

    runs = times(one_of_each)
    row = basic(job, job.impl, {"B": job.batch, "T": setting.prefill}, runs)
    forward_ms = statistics.median(forward_runs)
    row |= {"forward_ms": rounded(forward_ms), "over_forward": round(row["wall_ms"] / forward_ms, 3)}
    if device() == "cuda":  # last, since a profiler may leave later launches slower
        ours, theirs = map(call_ms, calls)
        row |= {"device_ms": rounded(ours), "timing": "kernels", "forward_device_ms": rounded(theirs)}
        row["device_over_forward"] = round(ours / theirs, 3)
    yield row


def call_ms(call: Callable[[], Any]) -> float:
    """Milliseconds of a call's kernels by a profiler."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        timed(call)
    return kernels_ms(recorded)


def train_rows(job: Job, setting: Setting, times: Repeated, ready: Ready) -> Iterator[Row]:
    """The time of forward, loss and backward, and of the same with products in one order of sums."""
    config = setting.configs[job.model]
    tokens = random_tokens(config, *setting.train)
    steps = {impl: partial(train_step, language_model(config, impl == EXACT), tokens) for impl in (NN, EXACT)}
    for step in (*steps.values(), *steps.values()):
        timed(step)
    if device() == "cuda":
        torch.cuda.empty_cache()  # another process may be preparing
    ready()
    for step in steps.values():  # the memory that was given back is allocated again
        timed(step)
    shape = dict(zip("BT", setting.train, strict=True))
    plain_ms = None
    for impl, step in steps.items():
        row = basic(job, impl, shape, times(partial(timed, step)))
        if plain_ms is None:
            plain_ms = row["wall_ms"]
        else:
            row["over_not_exact"] = round(row["wall_ms"] / plain_ms, 3)
        yield row


def train_step(model: LanguageModel, tokens: Tensor) -> None:
    """Forward and backward; the gradients are dropped."""
    next_token_loss(model(tokens), tokens).backward()
    model.zero_grad(set_to_none=True)


def limit_rows(job: Job, setting: Setting, times: Repeated, ready: Ready) -> Iterator[Row]:
    """The time of a copy; the rate of memory is that of its bytes, read and written."""
    size = setting.copied
    source = torch.empty(size, dtype=torch.uint8, device=device())
    target = torch.empty_like(source)
    ready()
    if device() == "cuda":
        size, how = limits.COPY_BYTES, "events"
        ms = limits.measure(GPU_CLOCK, torch.device("cuda", torch.cuda.current_device())).copy_ms
    else:
        how, ms = "wall", min(times(lambda: timed(lambda: target.copy_(source))))
    yield {
        "op": "limits",
        "case": "copy",
        "shape": {"bytes": size},
        "dtype": "uint8",
        "pass": "fwd",
        "impl": "torch",
        "framework": "torch",
        "device_ms": ms,
        "timing": how,
    }


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds of a call that begins on an idle device, until it is idle again."""
    wait()
    start = time.perf_counter()
    call()
    wait()
    return 1000 * (time.perf_counter() - start)


def wait() -> None:
    """Until the device has done all that was asked for."""
    if device() == "cuda":
        torch.cuda.synchronize()


def gpu() -> str:
    """The device's name."""
    return torch.cuda.get_device_name() if device() == "cuda" else "cpu"


def packages(job: Job) -> tuple[str, ...]:
    """The distributions whose versions are in the row."""
    peers = ("transformers", "mamba_ssm", "causal_conv1d") if job.impl == TRANSFORMERS else ()
    return "torch", "triton", *peers


def ignored(number: int) -> None:
    """Look at no token."""


def rounded(ms: float) -> float:
    """To four digits."""
    return float(f"{ms:.4g}")


MEASURES: dict[str, Callable[[Job, Setting, Repeated, Ready], Iterator[Row]]] = {
    TOKEN: token_rows,
    PREFILL: prefill_rows,
    TRAIN: train_rows,
    LIMITS: limit_rows,
}
