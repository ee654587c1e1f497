"""Times an op and its peers in PyTorch: each case on the same inputs, one implementation after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.testing.draw import Arrays, differentiable, draw, leaves, normal_as, options, outputs

from .environment import stamp
from .limits import measure
from .loop import Expected, HostTimes
from .loop import time_cases as loop_over
from .measure import GPU_CLOCK, Clock
from .peers import Function, Native, Peer, native
from .record import Record
from .results import Row
from .selection import sets_for


def run(
    room: Room,
    cases: Sequence[Case],
    peers: Sequence[Peer],
    emit: Callable[[Row], None],
    note: Callable[[str], None],
) -> list[str]:
    """Time cases on the GPU.

    Args:
        room: the op.
        cases: what to time.
        peers: what to time beside it.
        emit: takes each row as soon as it is there.
        note: takes lines about what was left out.

    Returns:
        Names of the cases on which retrograd itself failed.
    """
    # A backward pass runs on the stream of its forward pass, and a CUDA graph cannot hold the default stream.
    with torch.cuda.stream(torch.cuda.Stream()):
        limits = measure(GPU_CLOCK, torch.device("cuda", torch.cuda.current_device()))
        record = Record(room, "torch", stamp(torch.cuda.get_device_name()), limits, emit, note)
        return time_cases(record, cases, peers, GPU_CLOCK, "cuda")


def time_cases(record: Record, cases: Sequence[Case], peers: Sequence[Peer], clock: Clock, device: str) -> list[str]:
    """As `run`, where the limits are known already; with any clock and device."""
    own = Peer(record.room.label, partial(own_function, record.room))
    begin = partial(Work, record, clock, device)
    return loop_over(record, cases, (own, *peers), begin, partial(host_times, clock, device))


def own_function(room: Room, case: Case) -> Function:
    """The op itself."""
    return lambda inputs: outputs(room.torch, inputs, options(case))


class Work:
    """A case with its inputs, which every implementation is given in turn."""

    def __init__(self, record: Record, clock: Clock, device: str, case: Case) -> None:
        if device == "cuda":
            torch.cuda.empty_cache()  # blocks of the case before, whose sizes are not this one's
        self.record, self.case, self.clock = record, case, clock
        self.sets = [leaves(draw(case, device, seed)) for seed in range(sets_for(record.room, case))]
        self.gradients: list[list[Tensor]] = []  # for each set, of the outputs
        self.expected = Expected()

    def time(self, peer: Peer, host_us: HostTimes) -> None:
        """Time one implementation, and add its rows; its forward pass has one even if the backward pass fails."""
        built = native(peer.build(self.case))
        sets = [own_inputs(built, inputs) for inputs in self.sets]
        with torch.no_grad():
            first = built.restore(results(built.call, sets[0]))
            self.expected.check("output", first, difference)
            if not self.gradients:
                self.gradients = [gradients_like(first, seed) for seed in range(len(sets))]
            del first
            timing = self.clock.device([partial(built.call, inputs) for inputs in sets])
        self.record.add(self.case, "fwd", peer, timing, host_us.get("fwd"))
        made = [results(built.call, inputs) for inputs in sets]
        backward = [
            partial(torch.autograd.grad, y, wanted(x), own_gradients(built, y, came), retain_graph=True)
            for y, x, came in zip(made, sets, self.gradients, strict=True)
        ]
        del made
        self.expected.check("gradient", case_gradients(built, self.sets[0], backward[0]()), difference)
        self.record.add(self.case, "bwd", peer, self.clock.device(backward), host_us.get("bwd"))


def own_inputs(built: Native, inputs: Arrays) -> Arrays:
    """A peer's inputs; those of the case itself where it takes them as they are."""
    if built.prepare is dict:
        return inputs
    with torch.no_grad():
        return leaves({name: tensor.detach() for name, tensor in built.prepare(inputs).items()})


def own_gradients(built: Native, made: Sequence[Tensor], came: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of a peer's outputs, from those of the case's outputs; dense."""
    if built.restore is list:
        return list(came)
    given = [output.detach().requires_grad_() for output in made]
    return [g.contiguous() for g in torch.autograd.grad(list(built.restore(given)), given, came)]


def case_gradients(built: Native, inputs: Arrays, found: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the case's inputs, from those of a peer's inputs."""
    if built.prepare is dict:
        return list(found)
    return list(torch.autograd.grad(wanted(built.prepare(inputs)), wanted(inputs), found))


def host_times(clock: Clock, device: str, function: Function | Native, case: Case) -> HostTimes:
    """The host's time in a forward call, a backward call and both."""
    call = native(function).call
    inputs = own_inputs(native(function), leaves(draw(case, device, 0)))
    asked = wanted(inputs)
    made = results(call, inputs)
    gradients = gradients_like(made, 0)
    return {
        "fwd": clock.host_us(lambda: call(inputs)),
        "bwd": clock.host_us(lambda: torch.autograd.grad(made, asked, gradients, retain_graph=True)),
        "fwd+bwd": clock.host_us(lambda: torch.autograd.grad(results(call, inputs), asked, gradients)),
    }


def wanted(inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The inputs that have gradients."""
    return [tensor for tensor in inputs.values() if differentiable(tensor)]


def results(function: Function, inputs: Arrays) -> list[Tensor]:
    """The outputs of a call, as a list."""
    made: Any = function(inputs)
    return list(made) if isinstance(made, tuple | list) else [made]


def gradients_like(made: Sequence[Tensor], seed: int) -> list[Tensor]:
    """A gradient for each output, of its shape and dtype; another stream than that of `draw` with the same seed."""
    generator = torch.Generator(made[0].device).manual_seed(2**31 + seed)  # a CPU generator reads 32 bits of a seed
    return [normal_as(output.shape, output.dtype, generator) for output in made]


def difference(a: Tensor, b: Tensor) -> float:
    """The distance of a from b, relative."""
    kind = torch.complex64 if b.is_complex() else torch.float32
    b = b.to(kind)
    return float(torch.linalg.vector_norm(a.to(kind) - b) / torch.linalg.vector_norm(b))
