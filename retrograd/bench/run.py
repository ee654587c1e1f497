"""Times an op and its peers in PyTorch: for each case, all implementations on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
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
    info: OpInfo,
    cases: Sequence[Case],
    peers: Sequence[Peer],
    emit: Callable[[Row], None],
    note: Callable[[str], None],
) -> list[str]:
    """Time cases on the GPU.

    Args:
        info: the op.
        cases: the cases to time.
        peers: the peers to time on the same inputs.
        emit: called with each row immediately after its measurement.
        note: called with a line about each omitted peer.

    Returns:
        The names of the cases on which retrograd itself failed.
    """
    # A backward pass runs on the stream of its forward pass, and the default stream cannot be captured in a CUDA graph.
    with torch.cuda.stream(torch.cuda.Stream()):
        limits = measure(GPU_CLOCK, torch.device("cuda", torch.cuda.current_device()))
        record = Record(info, "torch", stamp(torch.cuda.get_device_name()), limits, emit, note)
        return time_cases(record, cases, peers, GPU_CLOCK, "cuda")


def time_cases(record: Record, cases: Sequence[Case], peers: Sequence[Peer], clock: Clock, device: str) -> list[str]:
    """As `run`, with limits measured before, and with any clock and device."""
    own = Peer(record.info.label, partial(own_function, record.info))
    begin = partial(Work, record, clock, device)
    return loop_over(record, cases, (own, *peers), begin, partial(host_times, clock, device))


def own_function(info: OpInfo, case: Case) -> Function:
    """The op as a function of the inputs by name."""
    return lambda inputs: outputs(info.torch, inputs, options(case))


class Work:
    """A case with its inputs, on which implementations are timed one after the other."""

    def __init__(self, record: Record, clock: Clock, device: str, case: Case) -> None:
        if device == "cuda":
            torch.cuda.empty_cache()  # cached blocks of the case before have other sizes
        self.record, self.case, self.clock = record, case, clock
        self.sets = [leaves(draw(case, device, seed)) for seed in range(sets_for(record.info, case))]
        self.gradients: list[list[Tensor]] = []  # for each set, of the outputs
        self.expected = Expected()

    def time(self, peer: Peer, host_us: HostTimes) -> None:
        """Time one implementation and add its rows; the row of the forward pass is kept if the backward pass fails."""
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
        returned = [results(built.call, inputs) for inputs in sets]
        backward = [
            partial(torch.autograd.grad, y, wanted(x), own_gradients(built, y, incoming), retain_graph=True)
            for y, x, incoming in zip(returned, sets, self.gradients, strict=True)
        ]
        del returned
        self.expected.check("gradient", case_gradients(built, self.sets[0], backward[0]()), difference)
        self.record.add(self.case, "bwd", peer, self.clock.device(backward), host_us.get("bwd"))


def own_inputs(built: Native, inputs: Arrays) -> Arrays:
    """A peer's inputs; the case's own if it needs no conversion."""
    if built.prepare is dict:
        return inputs
    with torch.no_grad():
        return leaves({name: tensor.detach() for name, tensor in built.prepare(inputs).items()})


def own_gradients(built: Native, returned: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of a peer's outputs, dense, from those of the case's outputs."""
    if built.restore is list:
        return list(incoming)
    detached = [output.detach().requires_grad_() for output in returned]
    return [g.contiguous() for g in torch.autograd.grad(list(built.restore(detached)), detached, incoming)]


def case_gradients(built: Native, inputs: Arrays, found: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the case's inputs, from those of a peer's inputs."""
    if built.prepare is dict:
        return list(found)
    return list(torch.autograd.grad(wanted(built.prepare(inputs)), wanted(inputs), found))


def host_times(clock: Clock, device: str, function: Function | Native, case: Case) -> HostTimes:
    """The host time of a forward call, a backward call and both."""
    call = native(function).call
    inputs = own_inputs(native(function), leaves(draw(case, device, 0)))
    differentiated = wanted(inputs)
    returned = results(call, inputs)
    gradients = gradients_like(returned, 0)
    return {
        "fwd": clock.host_us(lambda: call(inputs)),
        "bwd": clock.host_us(lambda: torch.autograd.grad(returned, differentiated, gradients, retain_graph=True)),
        "fwd+bwd": clock.host_us(lambda: torch.autograd.grad(results(call, inputs), differentiated, gradients)),
    }


def wanted(inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The inputs that have gradients."""
    return [tensor for tensor in inputs.values() if differentiable(tensor)]


def results(function: Function, inputs: Arrays) -> list[Tensor]:
    """The outputs of a call, as a list."""
    returned: Any = function(inputs)
    return list(returned) if isinstance(returned, tuple | list) else [returned]


def gradients_like(arrays: Sequence[Tensor], seed: int) -> list[Tensor]:
    """A gradient for each output, of its shape and dtype; its random stream differs from that of `draw`."""
    generator = torch.Generator(arrays[0].device).manual_seed(2**31 + seed)  # a CPU generator uses 32 bits of a seed
    return [normal_as(output.shape, output.dtype, generator) for output in arrays]


def difference(a: Tensor, b: Tensor) -> float:
    """The relative difference of a and b in the Euclidean norm."""
    kind = torch.complex64 if b.is_complex() else torch.float32
    b = b.to(kind)
    return float(torch.linalg.vector_norm(a.to(kind) - b) / torch.linalg.vector_norm(b))
