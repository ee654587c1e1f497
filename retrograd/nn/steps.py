"""Steps of generation on tensors that stay where they are, so that a GPU runs all of a step as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrograd.core.errors import bad_shape, bad_type

from .model import LanguageModel, State
from .sampling import Sampling

_one_capture = Lock()  # PyTorch allows one at a time in a process


class Steps:
    """Draws a token for each row, and the next one from it, and so on.

    A step reads and overwrites the tensors here: the last tokens, a uniform number for each row, the model's state. On
    a GPU the first step is an ordinary one, which compiles what is not compiled yet; the second is captured in a CUDA
    graph, and replayed from then on.

    Args:
        model: the model.
        state: after all tokens of the prompt; it may be overwritten.
        logits: (B, padded vocabulary), after the prompt.
        sampling: how tokens are drawn.
        stop: tokens that end a row; it then has the same token again and again.
        log_probabilities: whether they are computed.

    Attributes:
        logits: (B, vocabulary), from which the last tokens were drawn.
        tokens: (B,), the last ones.
        log_probabilities: (B,) float32, of the last tokens, 0 of those after a row's end; None if not asked for.
        ended: (B,), whether a row has drawn a token of `stop`.
    """

    def __init__(
        self,
        model: LanguageModel,
        state: State,
        logits: Tensor,
        sampling: Sampling,
        stop: Sequence[int] = (),
        *,
        log_probabilities: bool = False,
    ) -> None:
        self.model, self.state, self.sampling = model, apart(state), sampling
        self.logits = logits[:, : model.config.vocab_size].clone()
        batch, device = len(logits), logits.device
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=device)
        self.log_probabilities = torch.zeros(batch, device=device) if log_probabilities else None
        self.ended = torch.zeros(batch, dtype=torch.bool, device=device)
        self._stop = torch.tensor(stop, dtype=torch.int64).to(device)
        self._uniform = torch.zeros(batch, dtype=torch.float64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._compiled = False
        self._number = 0  # of the tokens that are drawn next

    def draw(self, uniform: Float[Tensor, " B"]) -> None:
        """Draw tokens from the logits, and compute their log probabilities.

        Raises:
            ValueError: for logits that are not finite. On a GPU, where this would synchronise, only of the first
                tokens: bad weights show in these.
        """
        if self._number == 0 or self.logits.device.type == "cpu":
            self._check_logits()
        drawn = self.sampling.draw(self.logits, uniform)
        if self.log_probabilities is not None:
            found = self.sampling.log_probabilities(self.logits, drawn)
            self.log_probabilities.copy_(found.masked_fill(self.ended, 0) if len(self._stop) else found)
        if len(self._stop):
            drawn = torch.where(self.ended, self.tokens, drawn)
            self.ended |= (drawn[:, None] == self._stop).any(-1)
        self.tokens.copy_(drawn)

    def advance(self, uniform: Float[Tensor, " B"]) -> None:
        """Advance the state by the last tokens, and draw the next."""
        self._number += 1
        self._uniform.copy_(uniform)
        if self._graph is None and self._compiled and self.tokens.is_cuda:
            self._graph = captured(self._step, self.tokens.device)
        if self._graph is not None:
            self._graph.replay()
        else:
            self._step()
            self._compiled = True

    def grow(self, capacity: int) -> None:
        """Give the state room for sequences of `capacity` tokens."""
        self.state = self.model.grown(self.state, capacity)
        self._graph, self._compiled = None, False

    def _step(self) -> None:
        logits, after = self.model.step(self.tokens, self.state, in_place=True)
        overwrite(self.state, after)
        self.logits.copy_(logits[:, : self.logits.shape[-1]])
        self.draw(self._uniform)

    def _check_logits(self) -> None:
        if not bool(self.logits.amax(-1).isfinite().all()):
            found = f"NaN or infinite logits for token {self._number}"
            raise ValueError(f"generate: model has {found}, expected finite numbers")


def captured(step: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of what `step` does to tensors on a device, current or not; nothing of it runs yet."""
    graph = torch.cuda.CUDAGraph()
    autocast = torch.autocast(
        "cuda",
        dtype=torch.get_autocast_dtype("cuda"),
        enabled=torch.is_autocast_enabled("cuda"),
        cache_enabled=False,  # a weight cast before, and kept for this context, would be gone when the graph runs
    )
    with _one_capture, torch.cuda.device(device):
        # Other threads may go on using the GPU meanwhile.
        capture = torch.cuda.graph(graph, stream=capture_stream(device), capture_error_mode="thread_local")
        with autocast, capture:
            step()
    return graph


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device on which graphs are captured: PyTorch's own is of the device that was current first."""
    return torch.cuda.Stream(device)


def apart(state: Any) -> Any:
    """The same state in dense tensors that share no memory with each other; one in two places stays in both."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}  # a tensor, and what stands for it
    memory: set[int] = set()

    def own(part: Any) -> Any:
        if isinstance(part, Tensor):
            if id(part) not in seen:
                shared = part.untyped_storage().data_ptr() in memory
                dense = part.clone(memory_format=torch.contiguous_format) if shared else part.contiguous()
                memory.add(dense.untyped_storage().data_ptr())
                seen[id(part)] = part, dense
            return seen[id(part)][1]
        if not isinstance(part, Sequence):
            return part
        parts = map(own, part)
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)  # type: ignore[call-arg]

    return own(state)


def overwrite(state: Any, after: Any) -> None:
    """Give the tensors of a state, which share no memory, the values of another; tensors that both have are left alone.

    A tensor may have its new values from what another one has now, as where the last two inputs are kept.
    """
    pairs: dict[int, tuple[Tensor, Tensor]] = {}
    for old, new in zip(tensors(state), tensors(after), strict=True):
        if new.shape != old.shape:
            expected = f"{tuple(old.shape)}, as before the step, since steps are taken in place"
            raise bad_shape("generate", "state", new.shape, expected)
        if pairs.setdefault(id(old), (old, new))[1] is not new:
            raise ValueError("generate: state has a tensor in two places, expected a step to give both the same values")
    overwritten = {old.untyped_storage().data_ptr() for old, new in pairs.values() if old is not new}

    def read_before(new: Tensor) -> Tensor:
        return new.clone() if new.untyped_storage().data_ptr() in overwritten else new

    changed = [(old, read_before(new)) for old, new in pairs.values() if old is not new]
    if changed:
        torch._foreach_copy_([old for old, _ in changed], [new for _, new in changed])


def tensors(state: Any) -> Iterator[Tensor]:
    """All tensors of a state, in order: it is one, or None, or a sequence of states."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Sequence):
        for part in state:
            yield from tensors(part)
    elif state is not None:
        raise bad_type("generate", "state", state, "tensors, or sequences of them")
