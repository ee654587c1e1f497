"""The same values in other memory layouts: every way in which a tensor passed by a user may not be dense.

Memory between the elements of a view holds NaN, or the largest integer, so that reads outside of the view are detected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.draw import differentiable


def surround(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """An array of that shape, filled with NaN or the largest integer."""
    poison: complex = torch.nan if differentiable(tensor) else torch.iinfo(tensor.dtype).max
    if tensor.is_complex():
        poison = complex(torch.nan, torch.nan)
    return torch.full(tuple(shape), poison, dtype=tensor.dtype, device=tensor.device)


def within(base: Tensor, view: Tensor, tensor: Tensor) -> Tensor:
    """Copy the tensor into the view of base and return the view."""
    assert view.shape == tensor.shape
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    view.copy_(tensor)
    return view


def transposed(tensor: Tensor) -> Tensor:
    """The first and the last dimension exchanged in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def channels_first(tensor: Tensor) -> Tensor:
    """The last two dimensions exchanged in memory: a (B, D, T) array seen as (B, T, D)."""
    axes = (max(0, tensor.dim() - 2), tensor.dim() - 1)
    return tensor.transpose(*axes).contiguous().transpose(*axes)


def permuted(tensor: Tensor) -> Tensor:
    """The leading dimensions in reverse order in memory; each row stays dense."""
    order = [*reversed(range(tensor.dim() - 1)), tensor.dim() - 1]
    return tensor.permute(order).contiguous().permute(order)


def sliced(tensor: Tensor) -> Tensor:
    """Columns cut out of a wider array, offset by one element so that it is unaligned, like a head of a packed qkv."""
    base = surround(tensor, (*tensor.shape[:-1], tensor.shape[-1] + 3))
    return within(base, base[..., 1:-2], tensor)


def aligned_slice(tensor: Tensor) -> Tensor:
    """Columns cut out of a wider array on a 16-byte boundary; each row is dense."""
    base = surround(tensor, (*tensor.shape[:-1], tensor.shape[-1] + 64))
    return within(base, base[..., 32:-32], tensor)


def every_other_row(tensor: Tensor) -> Tensor:
    """Every other row of a longer array."""
    base = surround(tensor, (2 * tensor.shape[0], *tensor.shape[1:]))
    return within(base, base[::2], tensor)


def every_third_column(tensor: Tensor) -> Tensor:
    """Columns three elements apart."""
    base = surround(tensor, (*tensor.shape[:-1], 3 * tensor.shape[-1]))
    return within(base, base[..., ::3], tensor)


def conjugated(tensor: Tensor) -> Tensor:
    """The conjugates in memory with PyTorch's conjugate bit set, as `x.conj()` returns."""
    return tensor.conj().resolve_conj().conj()


def broadcast_rows(tensor: Tensor) -> Tensor:
    """The first row, with stride 0."""
    return tensor[:1].expand(tensor.shape) if tensor.shape[0] else tensor


def broadcast_columns(tensor: Tensor) -> Tensor:
    """The first column, with stride 0."""
    return tensor[..., :1].expand(tensor.shape) if tensor.shape[-1] else tensor


def broadcast(tensor: Tensor) -> Tensor:
    """One element, with stride 0 everywhere: like the incoming gradient of `y.sum().backward()`."""
    return tensor.reshape(-1)[0].expand(tensor.shape) if tensor.numel() else tensor


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    layout.__name__: layout
    for layout in (
        transposed,
        channels_first,
        permuted,
        sliced,
        aligned_slice,
        every_other_row,
        every_third_column,
        conjugated,
        broadcast_rows,
        broadcast_columns,
        broadcast,
    )
}


REPEATING = frozenset({"broadcast_rows", "broadcast_columns", "broadcast"})


def laid_out(layout: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in a layout; integers keep their values, so they are not broadcast."""
    lay = LAYOUTS[layout]
    return {
        name: lay(tensor) if tensor.dim() and (differentiable(tensor) or layout not in REPEATING) else tensor
        for name, tensor in tensors.items()
    }


def layouts_of(info: OpInfo, case: Case) -> list[str]:
    """The layouts in which a case is tested."""
    if not info.is_representative(case):
        return []
    makes_sense = {
        "channels_first": bool(info.time_axis),
        "conjugated": any(tensor.dtype.startswith("complex") for tensor in case.inputs.values()),
    }
    return [name for name in LAYOUTS if makes_sense.get(name, True)]
