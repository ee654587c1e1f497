"""Times an op and its peers in JAX: one jitted function loops over all sets of inputs, so host time is not measured."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

# Leaves memory of the GPU for PyTorch.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

from retrograd.core.jax.launch import arch_of_jax
from retrograd.core.jax.launch import run as launch
from retrograd.opinfo.cases import Case, Law, Tensor
from retrograd.opinfo.info import OpInfo, Pass
from retrograd.testing.jax_call import outputs

from .environment import stamp
from .limits import COPY_BYTES, MATMUL_SIZE, Limits, exp_program
from .loop import Expected, HostTimes
from .loop import time_cases as loop_over
from .measure import Timing
from .peers import Function, Native, Peer, native
from .record import Record
from .results import Row
from .selection import sets_for

Arrays = dict[str, jax.Array]

# One compiled function contains a call for each set, so more sets take longer to compile; this many keep the L2 cold.
MOST_SETS = 32
# Sets of at least this many bytes are passed in a call each, which compiles faster; the device time of a call is then
# longer than the host time of its dispatch.
APART_BYTES = 2**28
# Runs over all sets that are queued together, and the number of times that these are timed.
QUEUED = 8
REPEATS = 5
# A run over all sets that takes longer than this is not queued, so that a slow peer takes seconds, not minutes.
LONG_S = 0.05


def device_ms(call: Callable[[], Any]) -> float:
    """Median wall-clock time of a call of jitted functions, in milliseconds.

    QUEUED calls are dispatched without waiting, so after the first call the host time overlaps with the device time.
    """
    for _ in range(2):
        start = time.perf_counter()
        jax.block_until_ready(call())
    queued, repeats = (1, 2) if time.perf_counter() - start > LONG_S else (QUEUED, REPEATS)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(queued):
            result = call()
        jax.block_until_ready(result)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3 / queued


def host_us(call: Callable[[], Any], repeats: int = 200) -> float:
    """Median host time of one call of a jitted function, in microseconds."""
    times = []
    for _ in range(20 + repeats):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
        jax.block_until_ready(result)
    return statistics.median(times[20:]) * 1e6


@dataclass(frozen=True)
class Clock:
    """How jitted functions are timed; tests pass another clock."""

    device_ms: Callable[[Callable[[], Any]], float] = device_ms
    host_us: Callable[[Callable[[], Any]], float] = host_us


def run(
    info: OpInfo,
    cases: Sequence[Case],
    peers: Sequence[Peer],
    emit: Callable[[Row], None],
    note: Callable[[str], None],
) -> list[str]:
    """Time cases on the GPU; arguments and result are those of `bench.run.run`."""
    clock = Clock()
    record = Record(info, "jax", stamp(jax.devices()[0].device_kind), measure_limits(clock), emit, note)
    return time_cases(record, cases, peers, clock)


def measure_limits(clock: Clock) -> Limits:
    """The machine's limits, as XLA reaches them. The copy is x + 1, because XLA removes a plain copy.

    The exponentials are computed by the same kernel as in PyTorch.
    """
    arch = arch_of_jax()
    if arch is None:
        raise RuntimeError("jax launches no Triton kernels here")
    source = normal((COPY_BYTES // 4,), "float32", 0)
    copy = partial(jax.jit(lambda x: x + 1), source)
    product = partial(jax.jit(jnp.matmul), *(normal((MATMUL_SIZE, MATMUL_SIZE), "bfloat16", seed) for seed in range(2)))
    exponentials = partial(jax.jit(lambda start: launch(exp_program(), arch, [start])), jnp.zeros(1))
    return Limits.timed(*(clock.device_ms(call) for call in (copy, product, exponentials)))


def time_cases(record: Record, cases: Sequence[Case], peers: Sequence[Peer], clock: Clock) -> list[str]:
    """As `run`, with limits measured before, and with any clock."""
    own = Peer(record.info.label, partial(own_function, record.info))
    return loop_over(record, cases, (own, *peers), partial(Work, record, clock), partial(host_times, clock))


def own_function(info: OpInfo, case: Case) -> Function:
    """The op as a function of the inputs by name."""
    op, names = info.jax(), list(case.inputs)  # jax.jit reorders a dict
    return lambda inputs: outputs(op, names, [inputs[name] for name in names], case.options)


class Work:
    """A case with its inputs, on which implementations are timed one after the other."""

    def __init__(self, record: Record, clock: Clock, case: Case) -> None:
        self.record, self.case, self.clock = record, case, clock
        self.sets = [draw(case, seed) for seed in range(min(MOST_SETS, sets_for(record.info, case)))]
        self.apart = record.info.bytes_moved(case, "fwd") >= APART_BYTES
        self.expected = Expected()

    def time(self, peer: Peer, host_us: HostTimes) -> None:
        """Time one implementation and add its rows; the row of the forward pass is kept if the backward pass fails."""
        function = native(peer.build(self.case)).call  # in JAX, all peers take the case's own inputs
        forward, backward, with_pulls = self.over(function), self.over(pull_back), self.over(partial(vjp, function))
        self.expected.check("output", jax.tree.leaves(forward(self.sets)[0]), difference)
        self.add("fwd", peer, partial(forward, self.sets), host_us)
        pairs = [(pull, gradients_like(y, seed)) for seed, (y, pull) in enumerate(with_pulls(self.sets))]
        self.expected.check("gradient", jax.tree.leaves(backward(pairs)[0]), difference)
        self.add("bwd", peer, partial(backward, pairs), host_us)

    def add(self, which: Pass, peer: Peer, timed: Callable[[], Any], host_us: HostTimes) -> None:
        """Time a pass over all sets and add its row."""
        timing = Timing(self.clock.device_ms(timed) / len(self.sets), "wall")
        self.record.add(self.case, which, peer, timing, host_us.get(which))

    def over(self, function: Callable[[Any], Any]) -> Callable[[Sequence[Any]], list[Any]]:
        """The function over all sets, jitted: in one call, or in one call for each set."""
        if not self.apart:
            return jax.jit(in_order(function))
        jitted = jax.jit(function)
        return lambda items: [jitted(item) for item in items]


def in_order(function: Callable[[Any], Any]) -> Callable[[Iterable[Any]], list[Any]]:
    """The function over a list; each call depends on the one before, so that XLA neither fuses nor merges them."""

    def over(items: Iterable[Any]) -> list[Any]:
        results: list[Any] = []
        for item in items:
            if results:
                item, results[-1] = jax.lax.optimization_barrier((item, results[-1]))
            results.append(function(item))
        return results

    return over


def pull_back(pair: tuple[Callable[[Any], Any], Any]) -> Any:
    """A backward pass: the function that jax.vjp returned, applied to the outputs' gradients."""
    pull, gradients = pair
    return pull(gradients)


def vjp(function: Callable[[Any], Any], inputs: Arrays) -> tuple[Any, Any]:
    """As jax.vjp, with respect to the inputs that are not integers."""
    numbers = {name: array for name, array in inputs.items() if jnp.issubdtype(array.dtype, jnp.inexact)}
    return jax.vjp(lambda x: function({**inputs, **x}), numbers)


def host_times(clock: Clock, built: Function | Native, case: Case) -> HostTimes:
    """The host time of a jitted forward call, a backward call and both."""
    function = native(built).call
    inputs = draw(case, 0)
    y, pull = jax.jit(partial(vjp, function))(inputs)
    pair = (pull, gradients_like(y, 0))
    forward, backward = jax.jit(function), jax.jit(pull_back)
    both = jax.jit(lambda inputs, gradients: vjp(function, inputs)[1](gradients))
    return {
        "fwd": clock.host_us(lambda: forward(inputs)),
        "bwd": clock.host_us(lambda: backward(pair)),
        "fwd+bwd": clock.host_us(lambda: both(inputs, pair[1])),
    }


def draw(case: Case, seed: int) -> Arrays:
    """The inputs of a case."""
    return {name: draw_one(tensor, seed * 64 + place) for place, (name, tensor) in enumerate(case.inputs.items())}


def draw_one(tensor: Tensor, seed: int) -> jax.Array:
    """One input, drawn from its distribution (`law`)."""
    if tensor.values is not None:
        return jnp.asarray(tensor.values, tensor.dtype).reshape(tensor.shape)
    return by_law(tensor.shape, tensor.dtype, tensor.law, seed, tensor.mean, tensor.std)


def gradients_like(arrays: Any, seed: int) -> Any:
    """A gradient for each output."""
    leaves, tree = jax.tree.flatten(arrays)
    drawn = [by_law(y.shape, str(y.dtype), "normal", -1 - seed * 64 - place) for place, y in enumerate(leaves)]
    return jax.tree.unflatten(tree, drawn)


@partial(jax.jit, static_argnums=(0, 1, 2))
def by_law(shape: tuple[int, ...], dtype: str, law: Law, seed: int, mean: float = 0.0, std: float = 1.0) -> jax.Array:
    """Random numbers with a distribution (`law`), drawn in fp32 as in `testing.draw`."""
    g, other = (jax.random.normal(jax.random.key(key), shape) for key in (2 * seed, 2 * seed + 1))
    g = g * std + mean
    if law == "decay":
        g = jax.nn.sigmoid(g)
    elif law == "negative":
        g = -jnp.exp(g)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        if law == "decay":
            return g * jnp.exp(1j * jnp.pi * jax.lax.erf(other * 0.5**0.5)).astype(dtype)
        return jax.lax.complex(g, other * std + mean if law == "normal" else other).astype(dtype)
    return g.astype(dtype)


@partial(jax.jit, static_argnums=(0, 1))
def normal(shape: tuple[int, ...], dtype: str, seed: int, mean: float = 0.0, std: float = 1.0) -> jax.Array:
    """Normally distributed numbers, drawn in fp32."""
    return (jax.random.normal(jax.random.key(seed), shape) * std + mean).astype(dtype)


def difference(a: jax.Array, b: jax.Array) -> float:
    """The relative difference of a and b in the Euclidean norm."""
    kind = jnp.complex64 if jnp.iscomplexobj(b) else jnp.float32
    a, b = a.astype(kind).ravel(), b.astype(kind).ravel()
    return float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))
