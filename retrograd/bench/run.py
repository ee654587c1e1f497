"""Times an op and its peers in PyTorch: each case on the same inputs, one implementation after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.testing.draw import Arrays, draw, normal, options, outputs

from .environment import stamp
from .limits import measure
from .loop import HostTimes, check_agreement
from .loop import time_cases as loop_over
from .measure import GPU_CLOCK, Clock
from .peers import Function, Peer
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
        limits = measure(GPU_CLOCK, "cuda")
        record = Record(room, "torch", stamp(torch.cuda.get_device_name()), limits, emit, note)
        return time_cases(record, cases, peers, GPU_CLOCK, "cuda")


def time_cases(record: Record, cases: Sequence[Case], peers: Sequence[Peer], clock: Clock, device: str) -> list[str]:
    """As `run`, where the limits are known already; with any clock and device."""
    own = Peer("retrograd", partial(own_function, record.room))
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
        self.expected: list[Tensor] = []  # what retrograd made of the first set

    def time(self, peer: Peer, host_us: HostTimes) -> None:
        """Time one implementation, and add its rows."""
        function = peer.build(self.case)
        made = [results(function, inputs) for inputs in self.sets]
        if not self.gradients or form(self.gradients[0]) != form(made[0]):
            self.gradients = [gradients_like(set_made, seed) for seed, set_made in enumerate(made)]
        backward = [
            partial(torch.autograd.grad, *given, retain_graph=True)
            for given in zip(made, (list(inputs.values()) for inputs in self.sets), self.gradients, strict=True)
        ]
        found = [*(output.detach() for output in made[0]), *backward[0]()]
        self.expected = self.expected or found
        check_agreement([difference(a, b) for a, b in zip(found, self.expected, strict=True)])
        backward_timing = self.clock.device(backward)
        del made, backward, found
        with torch.no_grad():
            forward_timing = self.clock.device([partial(function, inputs) for inputs in self.sets])
        self.record.add(self.case, "fwd", peer, forward_timing, host_us.get("fwd"))
        self.record.add(self.case, "bwd", peer, backward_timing, host_us.get("bwd"))


def host_times(clock: Clock, device: str, function: Function, case: Case) -> HostTimes:
    """The host's time in a forward call, a backward call and both."""
    inputs = leaves(draw(case, device, 0))
    wanted = list(inputs.values())
    made = results(function, inputs)
    gradients = gradients_like(made, 0)
    return {
        "fwd": clock.host_us(lambda: function(inputs)),
        "bwd": clock.host_us(lambda: torch.autograd.grad(made, wanted, gradients, retain_graph=True)),
        "fwd+bwd": clock.host_us(lambda: torch.autograd.grad(results(function, inputs), wanted, gradients)),
    }


def leaves(inputs: Arrays) -> Arrays:
    """Inputs that gradients are taken with respect to."""
    return {name: tensor.requires_grad_() for name, tensor in inputs.items()}


def results(function: Function, inputs: Arrays) -> list[Tensor]:
    """The outputs of a call, as a list."""
    made: Any = function(inputs)
    return list(made) if isinstance(made, tuple | list) else [made]


def gradients_like(made: Sequence[Tensor], seed: int) -> list[Tensor]:
    """A gradient for each output, of its shape and dtype; another stream than that of `draw` with the same seed."""
    generator = torch.Generator(made[0].device).manual_seed(2**31 + seed)  # a CPU generator reads 32 bits of a seed
    return [normal(output.shape, generator).to(output.dtype) for output in made]


def form(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    """Shapes and dtypes."""
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def difference(a: Tensor, b: Tensor) -> float:
    """The distance of a from b, relative."""
    b = b.float()
    return float(torch.linalg.vector_norm(a.float() - b) / torch.linalg.vector_norm(b))
