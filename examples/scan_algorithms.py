"""Algorithms for h_t = a_t * h_{t-1} + b_t, in PyTorch and JAX.

    python examples/scan_algorithms.py [--out runs/scan_algorithms]

measures each of them on this machine's CPU, in under a minute, and draws error and time against length and the bytes
that each must move. docs/annotated/scan.md explains them.

Every function takes a and b of shape (T, D), time first, T >= 1, and starts from h = 0. The code is shared by
both frameworks where `torch` and `jax.numpy` agree; the first section covers their differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import torch
import typer

from retrograd import linear_scan
from retrograd.jax import linear_scan as linear_scan_jax

Array = Any  # a torch.Tensor or a jax.Array
Elements = Sequence[Array]

CHUNK = 128  # steps


# Where the two frameworks differ


def namespace(x: Array) -> Any:
    """The module whose functions accept x."""
    return torch if isinstance(x, torch.Tensor) else jnp


def complex_of(real: Array, imag: Array) -> Array:
    """Two floats in one word: complex64 of two float32 is 64 bits, real part in the lower half."""
    return torch.complex(real, imag) if isinstance(real, torch.Tensor) else jax.lax.complex(real, imag)


def logcumsumexp(x: Array) -> Array:
    """log(cumsum(exp(x))) over time, with the largest term subtracted before exp."""
    return torch.logcumsumexp(x, 0) if isinstance(x, torch.Tensor) else jax.lax.cumlogsumexp(x, 0)


# Sequential


def sequential(a: Array, b: Array, h: Array | None = None) -> Array:
    """The definition: T dependent steps, one multiply-add each."""
    h = namespace(b).zeros_like(b[0]) if h is None else h
    return (sequential_torch if isinstance(b, torch.Tensor) else sequential_jax)(a, b, h)


def sequential_torch(a: torch.Tensor, b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """A Python loop: every step is a launch, which costs more than its arithmetic."""
    states = []
    for a_t, b_t in zip(a, b, strict=True):
        h = a_t * h + b_t
        states.append(h)
    return torch.stack(states)


def sequential_jax(a: jax.Array, b: jax.Array, h: jax.Array) -> jax.Array:
    """The same loop, compiled."""

    def step(h: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a_t, b_t = now
        h = a_t * h + b_t
        return h, h

    return jax.lax.scan(step, h, (a, b))[1]


# Associative scans


def combine(earlier: Elements, later: Elements) -> Elements:
    """The pair (a, b) stands for the map h -> a*h + b; this is the map that does the earlier one, then the later."""
    (a1, b1), (a2, b2) = earlier, later
    return a2 * a1, a2 * b1 + b2


def doubling(operator: Callable[[Elements, Elements], Elements], elements: Elements) -> Elements:
    """Hillis and Steele's scan: after the step with reach r, an element is combined with the 2r - 1 before it."""
    xp, reach = namespace(elements[0]), 1
    while reach < elements[0].shape[0]:
        met = operator([x[:-reach] for x in elements], [x[reach:] for x in elements])
        elements = [xp.concatenate([x[:reach], y]) for x, y in zip(elements, met, strict=True)]
        reach *= 2
    return elements


def hillis_steele(a: Array, b: Array) -> Array:
    """log2(T) steps over the whole sequence."""
    return doubling(combine, (a, b))[1]


def packed(a: Array, b: Array) -> Array:
    """The same scan for an operator on single values instead of pairs: a and b share a 64-bit word."""
    return doubling(combine_words, (complex_of(a, b),))[0].imag


def combine_words(earlier: Elements, later: Elements) -> Elements:
    """`combine` on words: unpack, combine, pack. The product of complex numbers is another operator."""
    (first,), (second,) = earlier, later
    return (complex_of(*combine((first.real, first.imag), (second.real, second.imag))),)


def blelloch(a: Array, b: Array) -> Array:
    """Up a tree of maps, pair by pair, and down it again with states: 2 log2(T) steps over T elements in all."""
    xp, length, levels = namespace(a), a.shape[0], []
    while a.shape[0] > 1:
        a, b = padded(a, 2, 1), padded(b, 2, 0)
        levels.append((a, b))
        a, b = combine((a[0::2], b[0::2]), (a[1::2], b[1::2]))
    last, h = b, xp.zeros_like(b)  # the state behind the root, and the one before it
    for a, b in reversed(levels):
        h = h[: a.shape[0] // 2]  # without the child that was padding
        h = xp.stack([h, a[0::2] * h + b[0::2]], 1).reshape(b.shape)
    return xp.concatenate([h, last])[1 : length + 1]  # h holds the state before every step


def padded(x: Array, multiple: int, value: float) -> Array:
    """Pad with steps at the end, up to a multiple. The identity map is a = 1, b = 0."""
    xp, missing = namespace(x), -x.shape[0] % multiple
    return xp.concatenate([x, xp.broadcast_to(xp.full_like(x[:1], value), (missing, *x.shape[1:]))])


# Logarithms


def heinsen(a: Array, b: Array) -> Array:
    """Two cumulative sums and no recurrence: s = cumsum(log a), h = exp(s + log(cumsum(exp(log b - s)))).

    Needs a > 0 and b >= 0, and loses a digit with every tenfold |s|.
    """
    xp = namespace(a)
    s = xp.cumsum(xp.log(a), 0)
    return xp.exp(s + logcumsumexp(xp.log(b) - s))


def heinsen_complex(a: Array, b: Array) -> Array:
    """The same with signs: the logarithm of a negative number has pi as its imaginary part."""
    zero = namespace(a).zeros_like(a)
    return heinsen(complex_of(a, zero), complex_of(b, zero)).real


# Three steps


def chunked(a: Array, b: Array, chunk: int = CHUNK) -> Array:
    """Reduce every chunk to one map, carry states over the chunks, apply within the chunks."""
    xp, shape = namespace(a), b.shape
    a, b = padded(a, chunk, 1), padded(b, chunk, 0)
    a, b = (x.reshape(-1, chunk, *shape[1:]).swapaxes(0, 1) for x in (a, b))  # (time in chunk, chunks, ...)
    carry = sequential(xp.prod(a, 0), sequential(a, b)[-1])
    carry = xp.concatenate([xp.zeros_like(carry[:1]), carry[:-1]])
    return sequential(a, b, carry).swapaxes(0, 1).reshape(-1, *shape[1:])[: shape[0]]


# Library functions


def lax_associative_scan(a: jax.Array, b: jax.Array) -> jax.Array:
    """JAX's own: the same tree, with maps on the way down as well."""
    return jax.lax.associative_scan(combine, (a, b))[1]


def fused(a: Array, b: Array) -> Array:
    """`retrograd.linear_scan`: one pass on a GPU; its portable path, which is chunked, elsewhere."""
    return (linear_scan if isinstance(b, torch.Tensor) else linear_scan_jax)(a[None], b[None])[0]


def gradients(scan: Callable[[Array, Array], Array], a: Array, h: Array, dh: Array) -> tuple[Array, Array]:
    """The gradients of a and b from that of h: the same scan backwards, db_t = a_{t+1} * db_{t+1} + dh_t."""
    xp = namespace(a)
    a_next = xp.concatenate([a[1:], xp.zeros_like(a[:1])])
    h_before = xp.concatenate([xp.zeros_like(h[:1]), h[:-1]])
    db = xp.flip(scan(xp.flip(a_next, (0,)), xp.flip(dh, (0,))), (0,))
    return db * h_before, db


# Properties known without a measurement


@dataclass(frozen=True)
class Algorithm:
    """One way to compute the recurrence.

    Attributes:
        run: (a, b) -> h.
        words: numbers that pass between memory and the processor for each h_t, at length T, if every pass over the
            sequence reads its inputs once, writes its outputs once, and has its elementwise arithmetic fused;
            None if not counted.
        frameworks: in which it is measured.
    """

    run: Callable[[Array, Array], Array]
    words: Callable[[int], float] | None = None
    frameworks: tuple[str, ...] = ("torch", "jax")


def steps_of_doubling(length: int) -> int:
    """Passes of Hillis and Steele's scan."""
    return (length - 1).bit_length()


ALGORITHMS = {
    # a_t, b_t and h_{t-1} in, h_t out, in each of T passes
    "sequential": Algorithm(sequential, lambda length: 4),
    # pairs in, pairs out; the last pass needs no a
    "Hillis-Steele": Algorithm(hillis_steele, lambda length: 4 * steps_of_doubling(length) - 1),
    # the same bytes in words twice as wide
    "packed": Algorithm(packed, lambda length: 4 * steps_of_doubling(length) - 1),
    # up: n pairs in, n/2 out; down: n/2 states and n/2 pairs in, n states out; n = T, T/2, ..., 2
    "Blelloch": Algorithm(blelloch, lambda length: (3 + 2.5) * 2 * (1 - 1 / length)),
    # a in, s out; s and b in, h out
    "Heinsen": Algorithm(heinsen, lambda length: 5),
    # the same, and s is complex
    "Heinsen, complex": Algorithm(heinsen_complex, lambda length: 7),
    # a, b in; a, b in, h out; and for each chunk its map out and in, its carry out and in
    "chunked": Algorithm(chunked, lambda length: 5 + 6 / CHUNK),
    "lax.associative_scan": Algorithm(lax_associative_scan, frameworks=("jax",)),
    # a, b in, h out
    "linear_scan": Algorithm(fused, lambda length: 3),
}


def measured_in(framework: str) -> dict[str, Callable[[Array, Array], Array]]:
    """The algorithms of a framework; compiled in JAX."""
    here = {name: own.run for name, own in ALGORITHMS.items() if framework in own.frameworks}
    return {name: jax.jit(run) for name, run in here.items()} if framework == "jax" else here


def main(
    out: Annotated[Path, typer.Option(help="Folder for the table and the figures.")] = Path("runs/scan_algorithms"),
    longest: Annotated[
        int, typer.Option(help="The longest sequence that is timed; errors go to four times that.")
    ] = 32768,
    page: Annotated[Path | None, typer.Option(help="A page to put the table into, and the figures beside it.")] = None,
) -> None:
    """Measure every algorithm on this machine's CPU: its error, its time, and the bytes that it must move."""
    import scan_figures as figures

    jax.config.update("jax_platforms", "cpu")
    out.mkdir(parents=True, exist_ok=True)
    scans = {framework: measured_in(framework) for framework in ("torch", "jax")}
    facts = figures.table(figures.facts(scans, sequential, min(1024, longest)))
    print(facts)
    (out / "facts.md").write_text(facts + "\n")
    figures.draw_bytes({name: own.words for name, own in ALGORITHMS.items() if own.words}, out / "scan_bytes.png")
    same_bits = {name: run for name, run in scans["torch"].items() if name != "packed"}
    figures.draw_errors(figures.errors(same_bits, sequential, 4 * longest), out / "scan_error.png")
    figures.draw_times(figures.times(scans, longest), out / "scan_time.png")
    print(f"\ndrawn: {', '.join(str(path) for path in sorted(out.glob('*.png')))}")
    if page:
        figures.publish(out, page)


if __name__ == "__main__":
    typer.run(main)
