"""Steps of generation on tensors that stay where they are, so that a GPU runs all of a step as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock

import torch
from jaxtyping import Float
from torch import Tensor

from retrograd.core.torch.launch import steady_weights

from .model import LanguageModel, State
from .sampling import Sampling
from .states import apart, overwrite

WORTH_A_GRAPH = 4  # steps: a capture takes the host about the time of an ordinary one
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
        self.model, self.state, self.sampling = model, state, sampling
        self.logits = logits[:, : model.config.vocab_size].clone()
        batch, device = len(logits), logits.device
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=device)
        self.log_probabilities = torch.zeros(batch, device=device) if log_probabilities else None
        self.ended = torch.zeros(batch, dtype=torch.bool, device=device)
        self._stop = torch.tensor(stop, dtype=torch.int64).to(device)
        self._uniform = torch.zeros(batch, dtype=torch.float64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._held: list[Tensor] = []  # what the graph has the addresses of, also if the model gets others meanwhile
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

    def advance(self, uniform: Float[Tensor, " B"], steps: int) -> None:
        """Advance the state by the last tokens, and draw the next; `steps` such calls will come, with this one."""
        if self._number == 0:
            self.state = apart(self.state)
        self._number += 1
        self._uniform.copy_(uniform)
        if self._graph is None and self._compiled and self.tokens.is_cuda and steps >= WORTH_A_GRAPH:
            self._held = [tensor.detach() for tensor in (*self.model.parameters(), *self.model.buffers())]
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
        with steady_weights():
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
    # Not by `torch.cuda.graph`, which waits for the GPU and gives PyTorch's spare memory back to it.
    with _one_capture, torch.cuda.device(device), autocast:
        ours, stream = torch.cuda.current_stream(), capture_stream(device)
        stream.wait_stream(ours)
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")  # other threads may go on using the GPU meanwhile
            try:
                step()
            finally:
                graph.capture_end()
        ours.wait_stream(stream)
    return graph


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device on which graphs are captured."""
    return torch.cuda.Stream(device)
