"""The convolution: the inputs before a process's first step come from those before it, all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from retrograd.core.op import Op
from retrograd.core.torch.context import Results

from .collectives import gathered
from .layout import Piece
from .states import final_states, own_rows

if TYPE_CHECKING:
    from .parallel import ContextParallel


def convolution(
    context: ContextParallel, op: Op, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]
) -> Results:
    """`causal_conv1d` over the steps of all processes.

    The gradients of the last inputs before a border come from steps on both sides of it. They are computed once more,
    by the op itself, from these few steps together: a sum of both sides' rounded gradients would have other bits.
    """
    layout, x = context.layout, arrays["x"]
    local = dict(arrays)
    if layout.bounds is not None:
        local["cu_seqlens"] = context.boundaries(x.device)
    border = Border(context, run, local, settings)
    initial = own_rows(layout, op, arrays)
    if border.entering:
        initial = border.entered(initial)
    local["initial_state"] = initial
    if torch.is_grad_enabled() and x.requires_grad:
        local["x"] = _Completed.apply(border, x)
    always = {**settings, "return_final_state": True}
    y, final = run(local, always)
    assert y is not None
    assert final is not None
    border.initial = None if initial is None else initial.detach()
    if y.requires_grad:
        y, final = _Noted.apply(border, y, final)
    return y, final_states(layout, context.group, final, reverse=False) if settings["return_final_state"] else None


class Border:
    """The inputs around a process's borders, and the gradients of its last inputs.

    Attributes:
        entering: whether a sequence crosses this process's first border.
        initial: the states before the process's pieces, once they are known.
        dy, dfinal: the gradients of the results, once they are known.
    """

    def __init__(
        self, context: ContextParallel, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]
    ) -> None:
        self.context, self.run, self.arrays, self.settings = context, run, arrays, settings
        self.entering = context.layout.crosses(context.layout.rank)
        self.leaving = context.layout.crosses(context.layout.rank + 1)
        self.count = arrays["weight"].shape[1] - 1
        x = arrays["x"].detach()
        ends = [min(self.count, size) for size in context.layout.sizes]
        own = ends[context.layout.rank]
        both = torch.cat([x[:, :own], x[:, x.shape[1] - own :]], dim=1)
        every = gathered(both, [2 * end for end in ends], 1, context.group).split(
            [end for e in ends for end in (e, e)], 1
        )
        self.before = torch.cat([x[:, :0], *every[1 : 2 * context.layout.rank : 2]], dim=1)
        self.after = torch.cat([x[:, :0], *every[2 * context.layout.rank + 2 :: 2]], dim=1)
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
        layout, x = self.context.layout, self.arrays["x"].detach()
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
        past = torch.cat([state.transpose(1, 2), inputs], dim=1)[:, -(self.count + own) : -own]
        window = torch.cat([inputs[:, -own:], self.after[:, :more]], dim=1).requires_grad_()
        dy = torch.cat([self.dy[:, -own:], following[:, :more]], dim=1)
        rest = {n: None if t is None else t.detach() for n, t in self.arrays.items()}
        state = past.transpose(1, 2)
        always = {**self.settings, "return_final_state": True}
        ends = next(rank for rank in range(layout.rank + 1, layout.world) if any(  # where the sequence does
            each.sequence == piece.sequence and each.last for each in layout.pieces_of(rank)))  # fmt: skip
        with torch.enable_grad():
            arrays = {**rest, "x": window, "initial_state": state, "cu_seqlens": None}
            y, final = self.run(arrays, always)
            assert y is not None
            assert final is not None
            # A window that ends before the sequence has no part in its final state.
            dfinal = dfinals[ends] if more < self.count else torch.zeros_like(dfinals[ends])
            (dwindow,) = torch.autograd.grad((y, final), window, (dy, dfinal))
        dx[:, piece.end - own : piece.end] = dwindow[:, :own]
        return dx

    def _gradients(self) -> tuple[Tensor, list[Tensor]]:
        """The gradients of the first results of all later processes, and of the state after each one's first piece."""
        layout, dy, dfinal = self.context.layout, self.dy, self.dfinal
        assert dy is not None
        assert dfinal is not None
        ends = [min(self.count, size) for size in layout.sizes]
        own = dfinal if layout.bounds is None else dfinal[:1]
        both = torch.cat([dy[:, : ends[layout.rank]], own.transpose(1, 2)], dim=1)
        every = gathered(both, [end + self.count for end in ends], 1, self.context.group)
        parts = every.split([part for end in ends for part in (end, self.count)], 1)
        following = torch.cat([dy[:, :0], *parts[2 * layout.rank + 2 :: 2]], dim=1)
        return following, [part.transpose(1, 2) for part in parts[1::2]]


class _Completed(torch.autograd.Function):
    """x, whose gradient is completed."""

    @staticmethod
    def forward(ctx: Any, border: Border, x: Tensor) -> Tensor:
        ctx.border = border
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[None, Tensor]:
        with torch.no_grad():
            return None, ctx.border.completed(dx)


class _Noted(torch.autograd.Function):
    """The results, whose gradients are noted for the inputs."""

    @staticmethod
    def forward(ctx: Any, border: Border, y: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
        ctx.border = border
        return y.view_as(y), final.view_as(final)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[None, Tensor, Tensor]:
        ctx.border.dy, ctx.border.dfinal = dy.detach(), dfinal.detach()
        return None, dy, dfinal
