"""causal_conv1d without a GPU kernel: one source for PyTorch and JAX, on CPU and TPU, forward and backward.

Both passes work on padded rows, with W-1 steps before the first: (B, W-1 + T, D). Packed sequences are gathered into
one such row, each with its state before it (`packing.py`), so that no tap reads another sequence and the formulas are
the same as without packing. `xp` is a `retrograd.core.xp.Namespace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrograd.core.xp import Namespace, silu_grad

from .op import Spec
from .packing import Packing, pack

Arrays = Mapping[str, Any]


def forward(xp: Namespace, spec: Spec, arrays: Arrays) -> dict[str, Any]:
    """y and, if returned, final_state."""
    packing = pack(xp, spec, arrays["cu_seqlens"]) if spec.packed else None
    padded = with_states(xp, spec, arrays, packing)
    y = pre_activation(xp, spec, arrays, padded)
    if spec.silu:
        y = xp.silu(y)
    results = {"y": xp.astype(y if packing is None else packing.unpack(xp, y), spec.x.dtype)}
    if spec.return_final_state:
        if packing is None:
            final = xp.moveaxis(padded[:, spec.time :], 1, 2)
        else:
            final = packing.states_at(xp, padded[:, spec.width - 1 :], packing.finals)
        results["final_state"] = xp.astype(final, spec.x.dtype)
    return results


def backward(xp: Namespace, spec: Spec, arrays: Arrays, wanted: frozenset[str]) -> dict[str, Any]:
    """The wanted gradients; the formulas are in README.md."""
    packing = pack(xp, spec, arrays["cu_seqlens"]) if spec.packed else None
    padded = with_states(xp, spec, arrays, packing) if "x" in arrays else None

    def of_steps(row: Any) -> Any:
        return row if packing is None else packing.steps_alone(xp, row)

    dpre = xp.astype(arrays["dy"], spec.compute_dtype)
    if packing is not None:
        dpre = packing.spread(xp, dpre)
    if spec.silu:
        dpre = of_steps(dpre * silu_grad(xp, pre_activation(xp, spec, arrays, padded)))
    gradients: dict[str, Any] = {}
    if wanted & {"x", "initial_state"}:
        gradients |= input_gradients(xp, spec, arrays, packing, dpre)
    if "weight" in wanted:
        T = dpre.shape[1]
        taps = [xp.sum(of_steps(padded[:, k : k + T] * dpre), (0, 1)) for k in range(spec.width)]  # type: ignore[index]
        gradients["dweight"] = xp.astype(xp.stack(taps, 1), spec.weight.dtype)
    if spec.bias is not None and "bias" in wanted:
        gradients["dbias"] = xp.astype(xp.sum(dpre, (0, 1)), spec.bias.dtype)
    return gradients


def with_states(xp: Namespace, spec: Spec, arrays: Arrays, packing: Packing | None) -> Any:
    """The rows with W-1 steps before the first: the initial state or zeros."""
    x = xp.astype(arrays["x"], spec.compute_dtype)
    initial = arrays.get("initial_state")
    if initial is not None:
        initial = xp.moveaxis(xp.astype(initial, spec.compute_dtype), 1, 2)
    if packing is not None:
        return packing.gather(xp, x, initial)
    if initial is None:
        initial = xp.zeros(x, (spec.batch, spec.width - 1, spec.channels), spec.compute_dtype)
    return xp.concat([initial, x], 1)


def pre_activation(xp: Namespace, spec: Spec, arrays: Arrays, padded: Any) -> Any:
    """bias + sum over k of weight[:, k] times the input W-1-k steps before."""
    T = padded.shape[1] - (spec.width - 1)
    weight = _taps(xp, spec, arrays)
    pre = padded[:, :T] * weight[..., 0]
    for k in range(1, spec.width):
        pre = pre + padded[:, k : k + T] * weight[..., k]
    return pre if spec.bias is None else pre + xp.astype(arrays["bias"], spec.compute_dtype)[None, None]


def _taps(xp: Namespace, spec: Spec, arrays: Arrays) -> Any:
    """The weight as (1, 1, D, W)."""
    return xp.astype(arrays["weight"], spec.compute_dtype)[None, None]


def input_gradients(xp: Namespace, spec: Spec, arrays: Arrays, packing: Packing | None, dpre: Any) -> dict[str, Any]:
    """dx and, with an initial state, dinitial_state: the two parts of the gradient of the padded rows."""
    W = spec.width
    weight = _taps(xp, spec, arrays)
    rows = shifted(xp, dpre * weight[..., 0], 0, W - 1)
    for k in range(1, W):
        rows = rows + shifted(xp, dpre * weight[..., k], k, W - 1 - k)
    dfinal = None
    if spec.return_final_state:
        dfinal = xp.moveaxis(xp.astype(arrays["dfinal_state"], spec.compute_dtype), 1, 2)
    if packing is None:
        if dfinal is not None:
            rows = rows + shifted(xp, dfinal, spec.time, 0)
        dx, dinitial = rows[:, W - 1 :], xp.moveaxis(rows[:, : W - 1], 1, 2)
    else:
        rows = rows[:, W - 1 :]
        if dfinal is not None:
            rows = rows + packing.spread_finals(xp, dfinal)
        dx, dinitial = packing.unpack(xp, rows), packing.states_at(xp, rows, packing.initials)
    gradients = {"dx": xp.astype(dx, spec.x.dtype)}
    if spec.initial_state is not None:
        gradients["dinitial_state"] = xp.astype(dinitial, spec.initial_state.dtype)
    return gradients


def shifted(xp: Namespace, array: Any, before: int, after: int) -> Any:
    """The array with `before` steps of zeros before it and `after` steps after it."""
    B, _, D = array.shape
    pads = [xp.zeros(array, (B, steps, D), str(array.dtype).removeprefix("torch.")) for steps in (before, after)]
    return xp.concat([pads[0], array, pads[1]], 1)
