"""The `context` argument of the ops: their sequences are divided over the processes of a group."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.distributed.device_mesh import DeviceMesh

from retrograd.core.errors import bad_shape, bad_type, bad_value
from retrograd.core.forgetting import STEP
from retrograd.core.op import Op
from retrograd.core.spec import bounded
from retrograd.core.torch import formulas
from retrograd.core.torch.context import Results
from retrograd.core.torch.dtensor import is_distributed
from retrograd.distributed.exchange import check_equal

from .attention import attention
from .collectives import Group, gathered
from .halo import convolution
from .layout import Layout
from .reach import Past
from .states import recurrence

ME = "ContextParallel"
Order = Literal["global", "ranks"]
EXCHANGES = {
    "attention": attention,
    "causal_conv1d": convolution,
    "linear_scan": recurrence,
    "selective_scan": recurrence,
    "ssd": recurrence,
}


class ContextParallel:
    """Divides sequences over processes, each of which passes its own steps and gets the results for them.

    Every process calls the same ops in the same order, forward and backward. A loss is the sum of the processes'
    losses: gradients of what all have, such as weights and initial states, are each process's part, to be summed as in
    data parallel training.

    Args:
        layout: which steps each process has; the same in all but for `rank`.
        group: the processes, or `mesh["cp"]`; all of them by default.
        order: "global": results and gradients of steps have the bits of one process; gradients of what all have, such
            as weights, are equal within rounding, and `linear_scan` is within its error budget.
            "ranks": they are reproducible for this layout, and attention takes any number of key heads.

    Raises:
        ValueError: in every process, if layouts or orders differ, or are of another number of processes.

    Example:
        >>> import torch, torch.distributed as dist, retrograd
        >>> from retrograd.distributed import ContextParallel, Layout
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> context = ContextParallel(Layout.even(100, world=1, rank=0))
        >>> x = context.shard(torch.randn(2, 100, 8))
        >>> y = retrograd.causal_conv1d(x, torch.randn(8, 4), context=context)
        >>> context.unshard(y).shape
        torch.Size([2, 100, 8])
        >>> dist.destroy_process_group()
    """

    def __init__(
        self, layout: Layout, group: dist.ProcessGroup | DeviceMesh | None = None, *, order: Order = "global"
    ) -> None:
        self.layout = layout
        self.group: Group = group if group is None or isinstance(group, dist.ProcessGroup) else group.get_group()
        self.order = order
        world, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        whose = "its process's" if layout.rank == rank else "another process's"
        own = {"starts": str(layout.starts), "bounds": str(layout.bounds), "order": order, "layout.rank": whose}
        check_equal(ME, own, self.group)  # before the checks that raise in one process only, if layouts differ
        if order not in ("global", "ranks"):
            raise bad_value(ME, "order", order, "'global' or 'ranks'")
        if layout.world != world:
            raise bad_value(ME, "layout.world", layout.world, f"{world}, the processes of the group")
        if order == "global" and not layout.exact:
            expected = f"borders at multiples of {STEP} steps of their sequences, or order='ranks'"
            raise bad_value(ME, "layout.starts", layout.starts, expected)
        self.past: dict[Hashable, Past] = {}  # see Reaches
        self._checked: set[Any] = set()
        self._positions: dict[torch.device, Tensor] = {}
        self._boundaries: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}

    def shard(self, x: Tensor, dim: int = 1) -> Tensor:
        """This process's steps of an array that all have."""
        if x.shape[dim] != self.layout.time:
            raise bad_shape(ME, "x", x.shape, f"{self.layout.time} steps along dim {dim}")
        return x.narrow(dim, self.layout.own.start, len(self.layout.own))

    def unshard(self, x: Tensor, dim: int = 1) -> Tensor:
        """The steps of all processes, in all of them; the gradient of a part is the sum over the processes."""
        if x.shape[dim] != len(self.layout.own):
            raise bad_shape(ME, "x", x.shape, f"{len(self.layout.own)} steps along dim {dim}")
        return gathered(x, self.layout.sizes, dim, self.group)

    @_disable_dynamo
    def positions(self, device: torch.device | str | None = None) -> Tensor:
        """(own steps,) int64: the position of each own step in its sequence; made once for a device."""
        place = torch.empty(0, device=device).device
        if place not in self._positions:
            with torch.inference_mode(False):  # they may be used in training later
                self._positions[place] = torch.tensor(self.layout.positions, dtype=torch.int64, device=place)
        return self._positions[place]

    def boundaries(self, device: torch.device, bounds: tuple[int, ...] | None = None) -> Tensor:
        """Boundaries as an array, by default those of this process's pieces; made once."""
        key = (self.layout.cu_seqlens if bounds is None else bounds, device)
        if key not in self._boundaries:
            with torch.inference_mode(False):
                self._boundaries[key] = torch.tensor(key[0], dtype=torch.int32, device=device)
        return self._boundaries[key]

    @_disable_dynamo
    def call(self, op: Op, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]) -> Results:
        """The results of an op for this process's steps; `run` computes it in one process."""
        tensors = tuple(arrays.values())
        if formulas.is_transformed() or formulas.differentiates(tensors):
            raise bad_value(op.name, "context", "given", "None in forward mode and under transforms of torch.func")
        for name, tensor in arrays.items():
            if is_distributed((tensor,)):
                raise bad_type(op.name, name, tensor, "a plain tensor beside a context")
        given = [(t.shape, t.dtype, t.requires_grad) if isinstance(t, Tensor) else type(t) for t in tensors]
        key = (op.name, torch.is_grad_enabled(), *given, *settings.values())
        if key not in self._checked:  # before the checks that may raise in one process only
            self._check_equal(op, arrays, settings)
        for name in bounded(op.call):
            if arrays[name] is not None:
                raise bad_value(op.name, name, "an array", "None: the context's layout has the boundaries")
        first, x = next(iter(arrays.items()))
        if x.ndim < 2 or x.shape[1] != len(self.layout.own):
            raise bad_shape(op.name, first, x.shape, f"{len(self.layout.own)} steps, those of this process")
        if self.layout.bounds is not None and x.shape[0] != 1:
            raise bad_shape(op.name, first, x.shape, "a batch of 1, since the context's layout has packed sequences")
        self._checked.add(key)
        return EXCHANGES[op.name](self, op, run, arrays, settings)

    def _check_equal(self, op: Op, arrays: dict[str, Any], settings: dict[str, Any]) -> None:
        """Raise in every process, before anything else is sent, unless all make the same call."""
        first = next(iter(arrays))
        steps = len(self.layout.own)
        own = {name: _described(t, steps if name == first else None) for name, t in arrays.items()}
        own |= {name: repr(value) for name, value in settings.items()}
        check_equal(op.name, own, self.group)


def _described(x: Any, steps: int | None) -> str:
    """What is equal in all processes, of an array of which each has its own number of steps; None if it is unknown."""
    if not isinstance(x, Tensor):
        return type(x).__name__
    shape = list(map(str, x.shape))
    if x.ndim > 2:
        shape[1] = "time" if steps in (None, x.shape[1]) else "another time"
    gradient = ", with a gradient" if x.requires_grad and torch.is_grad_enabled() else ""
    return f"({', '.join(shape)}) {x.dtype}{gradient}"
