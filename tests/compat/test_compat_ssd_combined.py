"""The stand-ins for mamba_ssm's Mamba-2 functions agree with the recurrence, for every argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compat_calls import close
from torch import Tensor

from retrograd.compat.causal_conv1d import causal_conv1d_fn
from retrograd.compat.mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
from retrograd.compat.mamba_ssm.ops.triton.selective_state_update import selective_state_update
from retrograd.compat.mamba_ssm.ops.triton.ssd_combined import (
    mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined,
)

BATCH, STEPS, HEADS, P, GROUPS, N, WIDTH, CHUNK = 2, 13, 4, 3, 2, 5, 4, 4
DIM, CONV = HEADS * P, HEADS * P + 2 * GROUPS * N
RUNS = [[7] * 5 + [2] * 8, [4] * 13]  # the numbers of seq_idx
Made = dict[str, Any]


def numbers(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture
def scan(seed: int) -> Made:
    randn = numbers(seed)
    return {
        "x": randn(BATCH, STEPS, HEADS, P),
        "dt": randn(BATCH, STEPS, HEADS),
        "A": -randn(HEADS).abs(),
        "B": randn(BATCH, STEPS, GROUPS, N),
        "C": randn(BATCH, STEPS, GROUPS, N),
        "chunk_size": CHUNK,
        "D": randn(HEADS),
        "z": randn(BATCH, STEPS, HEADS, P),
        "dt_bias": randn(HEADS),
        "initial_states": randn(BATCH, HEADS, P, N),
        "dt_softplus": True,
        "dt_limit": (0.1, 2.0),
        "return_final_states": True,
    }


def by_steps(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
) -> Any:
    """The recurrence, step by step."""
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    B, C = (array.repeat_interleave(x.shape[2] // array.shape[2], 2) for array in (B, C))
    state = x.new_zeros(*x.shape[::2], x.shape[3], B.shape[3]) if initial_states is None else initial_states
    ys = []
    for t in range(x.shape[1]):
        decay = (dt[:, t] * A).exp()[..., None, None]
        state = decay * state + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        ys.append((state * C[:, t, :, None]).sum(-1))
    y = torch.stack(ys, 1)
    if D is not None:
        y = y + x * (D if D.ndim == 2 else D[:, None])
    y = y if z is None else y * F.silu(z)
    return (y, state) if return_final_states else y


def with_gradients(function: Callable[..., Any], inputs: Made) -> list[Tensor]:
    """The results, and the gradients of a weighted sum of them."""
    leaves = {
        n: t.clone().requires_grad_() for n, t in inputs.items() if isinstance(t, Tensor) and t.is_floating_point()
    }
    found = function(**inputs | leaves)
    results = list(found) if isinstance(found, tuple) else [found]
    loss = sum(
        (result * torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)).sum() for result in results
    )
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return [result.detach() for result in results] + list(gradients)


@pytest.mark.parametrize(
    "left_out", [(), ("D",), ("z",), ("dt_bias",), ("initial_states",), ("dt_limit",), ("return_final_states",)]
)
def test_a_scan_has_the_results_and_gradients_of_the_recurrence(scan: Made, left_out: tuple[str, ...]) -> None:
    inputs = {name: value for name, value in scan.items() if name not in left_out}
    close(with_gradients(mamba_chunk_scan_combined, inputs), with_gradients(by_steps, inputs))


def test_a_scan_takes_a_skip_for_each_channel(scan: Made, seed: int) -> None:
    inputs = scan | {"D": numbers(seed)(HEADS, P)}
    close(with_gradients(mamba_chunk_scan_combined, inputs), with_gradients(by_steps, inputs))


def test_runs_of_seq_idx_are_scanned_apart(scan: Made) -> None:
    del scan["initial_states"]
    packed = scan | {"seq_idx": torch.tensor(RUNS, dtype=torch.int32)}
    y, states = mamba_chunk_scan_combined(**packed)
    for row, part in ((0, slice(5)), (0, slice(5, None)), (1, slice(None))):
        alone = {n: v[row : row + 1, part] if n in ("x", "dt", "B", "C", "z") else v for n, v in scan.items()}
        expected, last = by_steps(**alone)
        close(y[row : row + 1, part], expected)
        if part.stop is None:
            close(states[row : row + 1], last)


def test_padding_has_no_results(scan: Made) -> None:
    del scan["initial_states"]
    numbers = torch.tensor([[-1] * 5 + [0] * 8] * BATCH)
    y, _ = mamba_chunk_scan_combined(**scan, seq_idx=numbers)
    assert not y[:, :5].any()
    assert y[:, 5:].any()


def test_states_at_the_end_of_each_sequence_are_returned(scan: Made) -> None:
    one: Made = {
        n: v[:1] if isinstance(v, Tensor) and v.shape[0] == BATCH and v.ndim > 2 else v for n, v in scan.items()
    }
    del one["initial_states"]
    ends = torch.tensor([0, 5, STEPS], dtype=torch.int32)
    packed = one | {"seq_idx": torch.tensor(RUNS[:1]), "cu_seqlens": ends, "return_varlen_states": True}
    _, final, states = mamba_chunk_scan_combined(**packed)
    close(states[1:], final)
    first: Made = {n: v[:, :5] if n in ("x", "dt", "B", "C", "z") else v for n, v in one.items()}
    close(states[:1], by_steps(**first)[1])
    with pytest.raises(
        ValueError, match=r"cu_seqlens is \[0, 4, 13\], expected the bounds of the runs of seq_idx, \[0, 5"
    ):
        mamba_chunk_scan_combined(**packed | {"cu_seqlens": torch.tensor([0, 4, STEPS])})


REFUSED: list[tuple[Made, str]] = [
    ({"chunk_size": 0}, "chunk_size is 0, expected at least 1"),
    ({"state_dtype": torch.bfloat16}, "state_dtype is torch.bfloat16, expected None or torch.float32"),
    ({"seq_idx": torch.zeros(BATCH, STEPS, dtype=torch.int32)}, "initial_states is 'a tensor', expected None"),
    ({"cu_seqlens": torch.tensor([0, STEPS])}, "seq_idx is None, expected a tensor"),
    ({"return_varlen_states": True}, "seq_idx is None, expected a tensor"),
    ({"dt": torch.zeros(BATCH, STEPS)}, r"dt has shape \(2, 13\), expected \(batch, seqlen, nheads\) = \(2, 13, 4\)"),
    ({"A": torch.zeros(HEADS, 1)}, r"A has shape \(4, 1\), expected \(nheads,\) = \(4,\)"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_what_a_scan_cannot_honour_is_refused_by_name(scan: Made, change: Made, said: str) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=f"^mamba_chunk_scan_combined: {said}"):
        mamba_chunk_scan_combined(**scan | change)


def layer(seed: int, extra: int = 0) -> Made:
    randn = numbers(seed)
    return {
        "zxbcdt": randn(BATCH, STEPS, 2 * extra + DIM + CONV + HEADS),
        "conv1d_weight": randn(CONV, WIDTH),
        "conv1d_bias": randn(CONV),
        "dt_bias": randn(HEADS),
        "A": -randn(HEADS).abs(),
        "D": randn(HEADS),
        "chunk_size": CHUNK,
        "rmsnorm_weight": randn(DIM),
        "outproj_weight": randn(6, extra + DIM),
        "outproj_bias": randn(6),
        "headdim": P,
        "ngroups": GROUPS,
        "norm_before_gate": False,
    }


def in_parts(extra: int = 0, **given: Any) -> Any:
    """The layer from the other functions."""
    split = [extra, extra, DIM, CONV, HEADS]
    z0, x0, z, xBC, dt = given["zxbcdt"].split(split, -1)
    seq_idx, activation = given.get("seq_idx"), given.get("activation", "silu")
    filtered: Any = causal_conv1d_fn(
        xBC.transpose(1, 2), given["conv1d_weight"], given["conv1d_bias"], seq_idx=seq_idx, activation=activation
    )
    x, B, C = filtered.transpose(1, 2).split([DIM, GROUPS * N, GROUPS * N], -1)
    weight = given.get("rmsnorm_weight")
    y = mamba_chunk_scan_combined(
        x.unflatten(-1, (HEADS, P)),
        dt,
        given["A"],
        B.unflatten(-1, (GROUPS, N)),
        C.unflatten(-1, (GROUPS, N)),
        CHUNK,
        D=given["D"],
        z=None if weight is not None else z.unflatten(-1, (HEADS, P)),
        dt_bias=given["dt_bias"],
        dt_softplus=True,
        seq_idx=seq_idx,
        initial_states=given.get("initial_states"),
    ).flatten(-2)  # type: ignore[union-attr]
    if weight is not None:
        y = rmsnorm_fn(y, weight, None, z, 1e-6, DIM // GROUPS, given["norm_before_gate"])
    y = torch.cat((F.silu(z0) * x0, y), -1)
    return F.linear(y, given["outproj_weight"], given["outproj_bias"]) if "outproj_weight" in given else y


@pytest.mark.parametrize("extra", [0, 5])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"norm_before_gate": True},
        {"rmsnorm_weight": None},
        {"outproj_weight": None, "outproj_bias": None},
        {"activation": None},
        {"seq_idx": torch.tensor(RUNS)},
        {"D": torch.linspace(-1, 1, DIM, dtype=torch.float64).view(HEADS, P), "headdim": None},
    ],
    ids=lambda change: "-".join(change) or "all",
)
def test_a_layer_is_its_parts(seed: int, extra: int, change: Made) -> None:
    given = {name: value for name, value in (layer(seed, extra) | change).items() if value is not None}
    close(
        with_gradients(mamba_split_conv1d_scan_combined, given),
        with_gradients(lambda **arguments: in_parts(extra, **arguments), given),
    )


def test_a_layer_returns_its_final_states(seed: int) -> None:
    out, states = mamba_split_conv1d_scan_combined(**layer(seed), return_final_states=True)
    close(out, mamba_split_conv1d_scan_combined(**layer(seed)))
    assert states.shape == (BATCH, HEADS, P, N)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ngroups": 3}, "ngroups is 3, expected groups of 4 heads"),
        ({"headdim": None}, r"headdim is NoneType, expected an integer, since D is \(nheads,\)"),
        ({"outproj_weight": None}, "outproj_bias is 'a tensor', expected None, since outproj_weight is None"),
        ({"activation": "gelu"}, None),
        ({"zxbcdt": torch.zeros(1, 2, DIM + CONV)}, "zxbcdt has shape"),
    ],
)
def test_what_a_layer_cannot_honour_is_refused_by_name(seed: int, change: Made, said: str | None) -> None:
    where = "causal_conv1d_fn: activation" if said is None else f"mamba_split_conv1d_scan_combined: {said}"
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=f"^{where}"):
        mamba_split_conv1d_scan_combined(**layer(seed) | change)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_update_with_one_decay_for_a_head_is_a_step_of_the_scan(scan: Made, dtype: torch.dtype, dense: bool) -> None:
    def whole(array: Tensor, *shape: int) -> Tensor:
        """For all channels: by a stride of 0, from which the decay is known to be one, or by copies."""
        expanded = array.to(dtype).expand(*shape)
        return expanded.contiguous() if dense else expanded

    scan |= {"dt_limit": (0.0, math.inf)}
    step = {n: v[:, :1] if n in ("x", "dt", "B", "C", "z") else v for n, v in scan.items()}
    expected, after = by_steps(**step)
    state = scan["initial_states"].to(dtype)
    found = selective_state_update(
        state,
        scan["x"][:, 0].to(dtype),
        whole(scan["dt"][:, 0, :, None], -1, -1, P),
        whole(scan["A"][:, None, None], -1, P, N),
        scan["B"][:, 0].to(dtype),
        scan["C"][:, 0].to(dtype),
        whole(scan["D"][:, None], -1, P),
        scan["z"][:, 0].to(dtype),
        whole(scan["dt_bias"][:, None], -1, P),
        dt_softplus=True,
    )
    rounding: Made = {} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found.double(), expected[:, 0], **rounding)
    torch.testing.assert_close(state.double(), after, **rounding)
