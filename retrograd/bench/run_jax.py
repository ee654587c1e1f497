"""Times an op and its peers in JAX: one jitted function goes over all sets of inputs, so the host does not appear."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

# PyTorch may want memory of the same GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.testing.jax_call import outputs

from .environment import stamp
from .limits import COPY_BYTES, MATMUL_SIZE, Limits
from .loop import HostTimes, check_agreement
from .loop import time_cases as loop_over
from .measure import Timing
from .peers import Function, Peer
from .record import Record
from .results import Row
from .selection import sets_for

Arrays = dict[str, jax.Array]

# One compiled function holds a call for each set, so more sets take longer to compile; so many keep the L2 cold still.
MOST_SETS = 32
# Runs of the function that are queued together, and how often the whole is timed.
QUEUED = 8
REPEATS = 5


def device_ms(call: Callable[[], Any]) -> float:
    """Median time of a call of a jitted function by the wall clock, in milliseconds.

    QUEUED calls are sent off without waiting, so the host's work hides behind the device's but for the first.
    """
    for _ in range(2):
        jax.block_until_ready(call())
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(QUEUED):
            result = call()
        jax.block_until_ready(result)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3 / QUEUED


def host_us(call: Callable[[], Any], repeats: int = 200) -> float:
    """Median time the host spends in one call of a jitted function, in microseconds."""
    times = []
    for _ in range(20 + repeats):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
        jax.block_until_ready(result)
    return statistics.median(times[20:]) * 1e6


@dataclass(frozen=True)
class Clock:
    """How jitted functions are timed; tests give another."""

    device_ms: Callable[[Callable[[], Any]], float] = device_ms
    host_us: Callable[[Callable[[], Any]], float] = host_us


def run(
    room: Room,
    cases: Sequence[Case],
    peers: Sequence[Peer],
    emit: Callable[[Row], None],
    note: Callable[[str], None],
) -> list[str]:
    """Time cases on the GPU; arguments and result are those of `bench.run.run`."""
    clock = Clock()
    record = Record(room, "jax", stamp(jax.devices()[0].device_kind), measure_limits(clock), emit, note)
    return time_cases(record, cases, peers, clock)


def measure_limits(clock: Clock) -> Limits:
    """The machine's limits, as XLA reaches them. x + 1 moves what a copy moves; a plain copy XLA would leave out."""
    source = normal((COPY_BYTES // 4,), "float32", 0)
    copy = partial(jax.jit(lambda x: x + 1), source)
    product = partial(jax.jit(jnp.matmul), *(normal((MATMUL_SIZE, MATMUL_SIZE), "bfloat16", seed) for seed in range(2)))
    return Limits.timed(clock.device_ms(copy), clock.device_ms(product))


def time_cases(record: Record, cases: Sequence[Case], peers: Sequence[Peer], clock: Clock) -> list[str]:
    """As `run`, where the limits are known already; with any clock and device."""
    own = Peer("retrograd", partial(own_function, record.room))
    return loop_over(record, cases, (own, *peers), partial(Work, record, clock), partial(host_times, clock))


def own_function(room: Room, case: Case) -> Function:
    """The op itself."""
    op, names = room.jax(), list(case.inputs)  # jax.jit hands a dict back in another order
    return lambda inputs: outputs(op, names, [inputs[name] for name in names], case.options)


class Work:
    """A case with its inputs, which every implementation is given in turn."""

    def __init__(self, record: Record, clock: Clock, case: Case) -> None:
        self.record, self.case, self.clock = record, case, clock
        self.sets = [draw(case, seed) for seed in range(min(MOST_SETS, sets_for(record.room, case)))]
        self.expected: list[jax.Array] = []  # what retrograd made of the first set

    def time(self, peer: Peer, host_us: HostTimes) -> None:
        """Time one implementation, and add its rows."""
        function = peer.build(self.case)
        forward = jax.jit(in_order(function))
        backward = jax.jit(in_order(pull_back))
        with_pulls = jax.jit(in_order(partial(jax.vjp, function)))(self.sets)
        pairs = [(pull, gradients_like(made, seed)) for seed, (made, pull) in enumerate(with_pulls)]
        del with_pulls
        found = jax.tree.leaves((forward(self.sets)[0], backward(pairs)[0]))
        self.expected = self.expected or found
        check_agreement([difference(a, b) for a, b in zip(found, self.expected, strict=True)])
        for which, timed in (("fwd", partial(forward, self.sets)), ("bwd", partial(backward, pairs))):
            timing = Timing(self.clock.device_ms(timed) / len(self.sets), "wall")
            self.record.add(self.case, which, peer, timing, host_us.get(which))  # type: ignore[arg-type]


def in_order(function: Callable[[Any], Any]) -> Callable[[Iterable[Any]], list[Any]]:
    """The function over a list; each call waits for the one before, so that XLA neither fuses nor merges them."""

    def over(items: Iterable[Any]) -> list[Any]:
        made: list[Any] = []
        for item in items:
            if made:
                item, made[-1] = jax.lax.optimization_barrier((item, made[-1]))
            made.append(function(item))
        return made

    return over


def pull_back(pair: tuple[Callable[[Any], Any], Any]) -> Any:
    """A backward pass: the function that jax.vjp returned, applied to the outputs' gradients."""
    pull, gradients = pair
    return pull(gradients)


def host_times(clock: Clock, function: Function, case: Case) -> HostTimes:
    """The host's time in a jitted forward call, a backward call and both."""
    inputs = draw(case, 0)
    made, pull = jax.jit(partial(jax.vjp, function))(inputs)
    pair = (pull, gradients_like(made, 0))
    forward, backward = jax.jit(function), jax.jit(pull_back)
    both = jax.jit(lambda inputs, gradients: jax.vjp(function, inputs)[1](gradients))
    return {
        "fwd": clock.host_us(lambda: forward(inputs)),
        "bwd": clock.host_us(lambda: backward(pair)),
        "fwd+bwd": clock.host_us(lambda: both(inputs, pair[1])),
    }


def draw(case: Case, seed: int) -> Arrays:
    """The inputs of a case."""
    return {
        name: normal(tensor.shape, tensor.dtype, seed * 64 + place, tensor.mean, tensor.std)
        for place, (name, tensor) in enumerate(case.inputs.items())
    }


def gradients_like(made: Any, seed: int) -> Any:
    """A gradient for each output."""
    leaves, tree = jax.tree.flatten(made)
    drawn = [normal(y.shape, str(y.dtype), -1 - seed * 64 - place) for place, y in enumerate(leaves)]
    return jax.tree.unflatten(tree, drawn)


@partial(jax.jit, static_argnums=(0, 1))
def normal(shape: tuple[int, ...], dtype: str, seed: int, mean: float = 0.0, std: float = 1.0) -> jax.Array:
    """Normal numbers, drawn in fp32."""
    return (jax.random.normal(jax.random.key(seed), shape) * std + mean).astype(dtype)


def difference(a: jax.Array, b: jax.Array) -> float:
    """The distance of a from b, relative."""
    a, b = a.astype(jnp.float32).ravel(), b.astype(jnp.float32).ravel()
    return float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))
