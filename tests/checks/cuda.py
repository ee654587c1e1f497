"""What every op promises on a GPU besides its results, one function for each promise; each raises AssertionError."""

from __future__ import annotations

import torch

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import call, options
from retrograd.testing.poison import poisoned

from .contract import drawn
from .shared_memory import filled_with_nan

BUSY_CYCLES = 50_000_000  # tens of milliseconds


def check_graph(info: OpInfo, case: Case, seed: int) -> None:
    """Captured in a CUDA graph, forward and backward have the bits of eager, also for new values in the same memory."""
    inputs, gradients = drawn(info, case, "cuda", seed)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # loads the binaries, which a capture does not allow
        call(info.torch, inputs, options(case), gradients)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.empty_cache()  # a capture cannot free cached memory, which may be short on a shared GPU
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as JAX's, may use the GPU meanwhile; after a failed capture the old stream is current again.
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        captured = call(info.torch, inputs, options(case), gradients)
    for again in range(2):
        fresh, fresh_gradients = drawn(info, case, "cuda", seed + again)
        for name, tensor in inputs.items():
            tensor.copy_(fresh[name])
        for gradient, new in zip(gradients, fresh_gradients, strict=True):
            gradient.copy_(new)
        graph.replay()
        expected = call(info.torch, fresh, options(case), fresh_gradients)
        assert_same_bits(captured, expected, f"{info.name}, {case.name}: replay {again} of a CUDA graph")


def check_stream(info: OpInfo, case: Case, seed: int) -> None:
    """All kernels run on the current stream, after the work already queued on it."""
    inputs, gradients = drawn(info, case, "cuda", seed)
    expected = call(info.torch, inputs, options(case), gradients)
    late = {name: torch.zeros_like(tensor) for name, tensor in inputs.items()}
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)
        for name, tensor in inputs.items():
            late[name].copy_(tensor)
        result = call(info.torch, late, options(case), gradients)
    torch.cuda.synchronize()
    assert_same_bits(result, expected, f"{info.name}, {case.name}: on another stream")


def check_shared_memory(info: OpInfo, case: Case, seed: int) -> None:
    """Results do not depend on what is in shared memory and in new arrays before a kernel writes there.

    Checked for every sequence of kernels among which a plan may choose.
    """
    inputs, gradients = drawn(info, case, "cuda", seed)
    expected = call(info.torch, inputs, options(case), gradients)
    with filled_with_nan(), poisoned():
        for name, structure in {"public": lambda info: info, **info.structures}.items():
            found = call(structure(info).torch, inputs, options(case), gradients)
            assert_same_bits(found, expected, f"{info.name}, {case.name}, {name}: with NaN in shared memory")
