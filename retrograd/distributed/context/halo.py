"""The convolution: the inputs before a process's first step come from those before it, all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrograd.core.op import Op
from retrograd.core.torch.context import Results

from .collectives import gathered
from .layout import Piece
from .states import final_states, of_pieces

if TYPE_CHECKING:
    from .parallel import ContextParallel


def convolution(
    context: ContextParallel, op: Op, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]
) -> Results:
    """`causal_conv1d` over the steps of all processes.

    The gradients of the last inputs before a border come from steps on both sides of it. They are computed once more,
    by the op itself, from these few steps together: a sum of both sides' rounded gradients would have other bits.
    """
    x, local = arrays["x"], of_pieces(context, op, arrays)
    always = {**settings, "return_final_state": True}
    border = Border(context, run, local, always)
    if border.entering:
        local["initial_state"] = border.entered(local["initial_state"])
    border.initial = None if (initial := local["initial_state"]) is None else initial.detach()
    if torch.is_grad_enabled() and x.requires_grad:
        local["x"] = _Completed.apply(border, x)
    y, final = run(local, always)
    assert y is not None
    assert final is not None
    if y.requires_grad:
        y, final = _Noted.apply(border, y, final)
    return y, final_states(context.layout, context.group, final, reverse=False) if settings[
        "return_final_state"
    ] else None


class Border:
    """The inputs around a process's borders, and the gradients of its last inputs.

    Attributes:
        entering, leaving: whether a sequence crosses this process's first border, and its last one.
        count: the inputs that a state has.
        ends: how many steps of each process, at either end, others may need.
        before, after: the last inputs of all previous processes, the first ones of all later processes.
        initial: the states before the process's pieces, once they are known.
        dy, dfinal: the gradients of the results, once they are known.
    """

    def __init__(
        self, context: ContextParallel, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]
    ) -> None:
        self.context, self.run, self.settings = context, run, settings
        # Without their graph, of which this object is a part: else only Python's collector would free it.
        self.arrays: dict[str, Any] = {name: None if t is None else t.detach() for name, t in arrays.items()}
        self.entering = context.layout.crosses(context.layout.rank)
        self.leaving = context.layout.crosses(context.layout.rank + 1)
        self.count = arrays["weight"].shape[1] - 1
        self.ends = [min(self.count, size) for size in context.layout.sizes]
        x, rank = self.arrays["x"], context.layout.rank
        own = self.ends[rank]
        firsts, lasts = self._of_all(x[:, :own], x[:, x.shape[1] - own :], self.ends)
        self.before = torch.cat([x[:, :0], *lasts[:rank]], dim=1)
        self.after = torch.cat([x[:, :0], *firsts[rank + 1 :]], dim=1)
        self.initial: Tensor | None = None
        self.dy: Tensor | None = None
        self.dfinal: Tensor | None = None

    def entered(self, initial: Tensor | None) -> Tensor:
        """The states before the pieces, with the inputs of previous processes in the first one."""
        layout, x = self.context.layout, self.arrays["x"]
        piece = layout.pieces[0]
        known = min(self.count, layout.own.start - layout.sequences[piece.sequence])
        if initial is None:
            rows = x.shape[0] if layout.bounds is None else len(layout.pieces)
            initial = x.new_zeros(rows, x.shape[2], self.count)
        crossing = initial if layout.bounds is None else initial[:1]
        inputs = self.before[:, self.before.shape[1] - known :].transpose(1, 2)
        first = torch.cat([crossing[..., known:], inputs], dim=2)
        return first if layout.bounds is None else torch.cat([first, initial[1:]])

    def completed(self, dx: Tensor) -> Tensor:
        """The gradient of x with that of the last inputs computed from the steps on both sides of the border."""
        assert self.dy is not None
        following, dfinals = self._gradients()
        if not self.leaving:
            return dx
        layout, x = self.context.layout, self.arrays["x"]
        piece: Piece = layout.pieces[-1]
        own = min(self.count, piece.end - piece.begin)
        more = min(self.count, layout.sequences[piece.sequence + 1] - layout.own.stop)
        if not own:
            return dx
        B, _, D = x.shape
        inputs = x[:, piece.begin : piece.end]
        state = x.new_zeros(B, D, self.count)
        if self.initial is not None:
            state = self.initial if layout.bounds is None else self.initial[-1:]
        near = inputs[:, -(self.count + own) :]
        past = torch.cat([state.transpose(1, 2), near], dim=1)[:, -(self.count + own) : -own]
        window = torch.cat([inputs[:, -own:], self.after[:, :more]], dim=1).requires_grad_()
        dy = torch.cat([self.dy[:, -own:], following[:, :more]], dim=1)
        state = past.transpose(1, 2)
        last = next(rank for rank in range(layout.rank + 1, layout.world) if any(  # where the sequence does
            each.sequence == piece.sequence and each.last for each in layout.pieces_of(rank)))  # fmt: skip
        with torch.enable_grad():
            arrays = {**self.arrays, "x": window, "initial_state": state, "cu_seqlens": None}
            y, final = self.run(arrays, self.settings)
            assert y is not None
            assert final is not None
            # A window that ends before the sequence has no part in its final state.
            dfinal = dfinals[last] if more < self.count else torch.zeros_like(dfinals[last])
            (dwindow,) = torch.autograd.grad((y, final), window, (dy, dfinal))
        dx[:, piece.end - own : piece.end] = dwindow[:, :own]
        return dx

    def _gradients(self) -> tuple[Tensor, list[Tensor]]:
        """The gradients of the first results of all later processes, and of the state after each one's first piece."""
        layout, dy, dfinal = self.context.layout, self.dy, self.dfinal
        assert dy is not None
        assert dfinal is not None
        own = dfinal if layout.bounds is None else dfinal[:1]
        states = [self.count] * layout.world
        firsts, finals = self._of_all(dy[:, : self.ends[layout.rank]], own.transpose(1, 2), states)
        following = torch.cat([dy[:, :0], *firsts[layout.rank + 1 :]], dim=1)
        return following, [final.transpose(1, 2) for final in finals]

    def _of_all(self, first: Tensor, second: Tensor, sizes: list[int]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Two arrays of each process, `ends` and `sizes` long, in one message."""
        pairs = list(zip(self.ends, sizes, strict=True))
        every = gathered(torch.cat([first, second], dim=1), [sum(pair) for pair in pairs], 1, self.context.group)
        parts = every.split([size for pair in pairs for size in pair], 1)
        return parts[::2], parts[1::2]


class _Completed(torch.autograd.Function):
    """x, whose gradient is completed."""

    @staticmethod
    def forward(ctx: Any, border: Border, x: Tensor) -> Tensor:
        ctx.border = border
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[None, Tensor]:
        return None, ctx.border.completed(dx)


class _Noted(torch.autograd.Function):
    """The results, whose gradients are noted for the inputs."""

    @staticmethod
    def forward(ctx: Any, border: Border, y: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
        ctx.border = border
        return y.view_as(y), final.view_as(final)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[None, Tensor, Tensor]:
        ctx.border.dy, ctx.border.dfinal = dy, dfinal
        return None, dy, dfinal
