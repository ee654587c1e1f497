"""The stand-ins for mamba_ssm's Mamba-2 functions agree with the recurrence, for every argument."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compat_calls import close
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

import retrograd
from retrograd.compat.causal_conv1d import causal_conv1d_fn
from retrograd.compat.mamba_ssm.ops.triton import ssd_combined
from retrograd.compat.mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
from retrograd.compat.mamba_ssm.ops.triton.selective_state_update import selective_state_update
from retrograd.compat.mamba_ssm.ops.triton.ssd_combined import (
    mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined,
    ssd_chunk_scan_combined_ref,
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


def test_the_name_of_the_reference_bounds_no_step_size(scan: Made) -> None:
    inputs = {name: scan[name] for name in ("x", "dt", "A", "B", "C", "chunk_size", "D", "z", "dt_bias")}
    unbounded = {"dt_limit": (-math.inf, math.inf)}
    close(
        with_gradients(ssd_chunk_scan_combined_ref, inputs),
        with_gradients(lambda **given: by_steps(**given, **unbounded), inputs),  # type: ignore[arg-type]
    )


SIGNATURES: dict[Callable[..., Any], str] = {
    mamba_chunk_scan_combined: "x dt A B C chunk_size D z dt_bias initial_states seq_idx cu_seqlens dt_softplus "
    "dt_limit return_final_states return_varlen_states state_dtype",
    mamba_split_conv1d_scan_combined: "zxbcdt conv1d_weight conv1d_bias dt_bias A D chunk_size initial_states seq_idx "
    "dt_limit return_final_states activation rmsnorm_weight rmsnorm_eps outproj_weight outproj_bias headdim ngroups "
    "norm_before_gate state_dtype",
    ssd_chunk_scan_combined_ref: "x dt A B C chunk_size D z dt_bias dt_softplus",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__name__)
def test_arguments_have_the_names_and_the_order_of_mamba_ssm(function: Callable[..., Any]) -> None:
    assert " ".join(inspect.signature(function).parameters) == SIGNATURES[function]


def test_a_scan_takes_a_skip_for_each_channel(scan: Made, seed: int) -> None:
    inputs = scan | {"D": numbers(seed)(HEADS, P)}
    close(with_gradients(mamba_chunk_scan_combined, inputs), with_gradients(by_steps, inputs))


def rows_apart(numbers: list[list[int]], **given: Any) -> tuple[Tensor, Tensor]:
    """The recurrence over each run of equal numbers, 0 at negative ones; and the state at the end of each row."""
    ys, states = [], []
    for row, its in enumerate(numbers):
        ends = [t for t in range(1, STEPS + 1) if t == STEPS or its[t] != its[t - 1]]
        parts = []
        for begin, end in zip([0, *ends], ends, strict=False):
            alone = {n: v[row : row + 1, begin:end] if n in ("x", "dt", "B", "C", "z") else v for n, v in given.items()}
            y, state = by_steps(**alone)
            kept = its[begin] >= 0
            parts.append(y * kept)
            state = state * kept
        ys.append(torch.cat(parts, 1))
        states.append(state)
    return torch.cat(ys), torch.cat(states)


@pytest.mark.parametrize("numbers", [RUNS, [[-1] * 5 + [0] * 8, [3] * 2 + [0] * 4 + [-1] * 7]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_runs_of_seq_idx_are_scanned_apart_and_padding_has_no_results(
    scan: Made, numbers: list[list[int]], dtype: torch.dtype
) -> None:
    del scan["initial_states"]
    close(
        with_gradients(
            lambda **given: mamba_chunk_scan_combined(**given, seq_idx=torch.tensor(numbers, dtype=dtype)), scan
        ),
        with_gradients(lambda **given: rows_apart(numbers, **given), scan),
    )


@pytest.mark.parametrize(("batch", "steps"), [(0, STEPS), (BATCH, 0)])
@pytest.mark.parametrize("packed", [False, True])
def test_a_scan_of_nothing_leaves_the_states_as_they_were(scan: Made, batch: int, steps: int, packed: bool) -> None:
    scan |= {n: scan[n][:batch, :steps] for n in ("x", "dt", "B", "C", "z")}
    scan["initial_states"] = None if packed else scan["initial_states"][:batch]
    seq_idx = torch.zeros(batch, steps, dtype=torch.int32) if packed else None
    y, states = mamba_chunk_scan_combined(**scan, seq_idx=seq_idx)
    assert y.shape == (batch, steps, HEADS, P)
    expected = torch.zeros(batch, HEADS, P, N, dtype=torch.float64) if packed else scan["initial_states"]
    close(states, expected)


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
    ({"return_varlen_states": True}, "return_varlen_states is True, expected False, since the batch is 2"),
    ({"x": torch.zeros(BATCH, STEPS, HEADS)}, "x has shape"),
    ({"x": torch.zeros(BATCH, STEPS, HEADS, 257)}, "z has shape"),
    ({"z": None, "initial_states": None, "x": torch.zeros(BATCH, STEPS, HEADS, 257)}, "x has shape"),
    ({"B": torch.zeros(BATCH, STEPS, N)}, "B has shape"),
    ({"C": torch.zeros(BATCH, STEPS, GROUPS, N + 1)}, "C has shape"),
    ({name: torch.zeros(BATCH, STEPS, 3, N) for name in "BC"}, "B has shape .* ngroups that divide nheads = 4"),
    ({"D": torch.zeros(HEADS, P, 1)}, "D has shape"),
    ({"D": torch.zeros(P)}, "D has shape"),
    ({"z": torch.zeros(BATCH, STEPS, DIM)}, "z has shape"),
    ({"dt_bias": torch.zeros(HEADS, P)}, "dt_bias has shape"),
    ({"initial_states": torch.zeros(BATCH, HEADS, N, P)}, "initial_states has shape"),
    ({"seq_idx": torch.zeros(STEPS, dtype=torch.int32)}, "seq_idx has shape"),
    ({"seq_idx": torch.zeros(BATCH, STEPS)}, "seq_idx has dtype float32"),
    ({"dt_limit": (1.0, 0.0)}, "dt_limit is"),
    ({"dt_limit": 1.0}, "dt_limit is float"),
    ({"dt": torch.zeros(BATCH, STEPS)}, r"dt has shape \(2, 13\), expected \(batch, seqlen, nheads\) = \(2, 13, 4\)"),
    ({"A": torch.zeros(HEADS, 1)}, r"A has shape \(4, 1\), expected \(nheads,\) = \(4,\)"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_what_a_scan_cannot_honour_is_refused_by_name(scan: Made, change: Made, said: str) -> None:
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=f"^mamba_chunk_scan_combined: {said}"):
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


@pytest.mark.parametrize("packed", [False, True])
def test_a_layer_keeps_neither_the_convolution_nor_the_norm_and_computes_the_same_again(
    seed: int, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = layer(seed) | ({"seq_idx": torch.tensor(RUNS)} if packed else {})
    leaves = {n: t.requires_grad_() for n, t in given.items() if isinstance(t, Tensor) and t.is_floating_point()}
    storages: list[Any] = []
    inside: list[bool] = []

    def watched(function: Any) -> Any:
        def wrapped(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            y = function(x, *args, **kwargs)
            storages.append(y.untyped_storage()._weak_ref())
            parts = [x, *(tensor for name, tensor in kwargs.items() if name == "gate")]
            memory = given["zxbcdt"].untyped_storage().data_ptr()
            inside.append(parts[-1].untyped_storage().data_ptr() == memory)
            return y

        return wrapped

    for name in ("causal_conv1d", "rms_norm"):
        monkeypatch.setattr(ssd_combined.retrograd, name, watched(getattr(retrograd, name)))
    out: Any = mamba_split_conv1d_scan_combined(**given)
    assert inside == [True, True]  # the convolution and the gate read parts of the projection, no copies
    assert all(torch.UntypedStorage._expired(ref) for ref in storages)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    found = torch.autograd.grad(out, list(leaves.values()), weights)
    assert len(storages) == 4  # again in the backward pass
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):  # with which all is kept
        expected = torch.autograd.grad(mamba_split_conv1d_scan_combined(**given), list(leaves.values()), weights)
    assert len(storages) == 6
    assert all(map(torch.equal, found, expected))


def test_a_compiled_layer_keeps_neither_of_them_as_well(seed: int) -> None:
    given = layer(seed)
    leaves = [t.requires_grad_() for t in given.values() if isinstance(t, Tensor) and t.is_floating_point()]
    operators: list[list[str]] = []

    def seen(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        named = [str(node.target) for node in graph.graph.nodes]
        operators.append([name for name in named if name.startswith("retrograd.")])
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=seen, partition_fn=min_cut_rematerialization_partition)
    compiled = torch.compile(mamba_split_conv1d_scan_combined, backend=backend, fullgraph=True)
    torch._dynamo.reset()
    out: Any = compiled(**given)
    expected: Any = mamba_split_conv1d_scan_combined(**given)
    found = torch.autograd.grad(out.sum(), leaves)
    assert operators == [
        ["retrograd.causal_conv1d.default", "retrograd.ssd.default", "retrograd.rms_norm.default"],
        [
            "retrograd.rms_norm.default",  # again, for the last projection's gradient
            "retrograd.rms_norm_backward.default",
            "retrograd.causal_conv1d.default",
            "retrograd.ssd_backward.default",
            "retrograd.causal_conv1d_backward.default",
        ],
    ]
    assert all(map(torch.equal, found, torch.autograd.grad(expected.sum(), leaves)))


def test_a_layer_returns_its_final_states(seed: int) -> None:
    out, states = mamba_split_conv1d_scan_combined(**layer(seed), return_final_states=True)
    close(out, mamba_split_conv1d_scan_combined(**layer(seed)))
    assert states.shape == (BATCH, HEADS, P, N)


FLOAT = torch.zeros(DIM)
LAYER_REFUSED: list[tuple[Made, str]] = [
    ({"zxbcdt": torch.zeros(1, 2, DIM + CONV)}, "zxbcdt has shape"),
    ({"zxbcdt": torch.zeros(1, 2, 2 * DIM)}, "zxbcdt has shape"),
    ({"conv1d_weight": torch.zeros(DIM, WIDTH)}, "conv1d_weight has shape"),
    ({"conv1d_weight": torch.zeros(CONV, 1, WIDTH)}, "conv1d_weight has shape"),
    ({"conv1d_weight": torch.zeros(CONV, 65)}, "conv1d_weight has shape"),
    ({"conv1d_bias": FLOAT}, "conv1d_bias has shape"),
    ({"dt_bias": FLOAT}, "dt_bias has shape"),
    ({"A": FLOAT}, "A has shape"),
    ({"D": torch.zeros(HEADS, P + 1)}, "D has shape"),
    ({"chunk_size": 2.0}, "chunk_size is float"),
    ({"initial_states": torch.zeros(BATCH, HEADS, N, P)}, "initial_states has shape"),
    ({"seq_idx": torch.zeros(BATCH, 1, dtype=torch.int32)}, "seq_idx has shape"),
    ({"seq_idx": torch.zeros(BATCH, STEPS)}, "seq_idx has dtype"),
    ({"dt_limit": (1.0, 0.0)}, "dt_limit is"),
    ({"dt_limit": None}, "dt_limit is NoneType"),
    ({"return_final_states": None}, "return_final_states is NoneType"),
    ({"activation": "gelu"}, "activation is 'gelu'"),
    ({"rmsnorm_weight": torch.zeros(P)}, "rmsnorm_weight has shape"),
    ({"rmsnorm_eps": None}, "rmsnorm_eps is NoneType"),
    ({"outproj_weight": None}, "outproj_bias is 'a tensor', expected None, since outproj_weight is None"),
    ({"outproj_weight": torch.zeros(6, 6)}, "outproj_weight has shape"),
    ({"outproj_weight": torch.zeros(6, DIM)}, "outproj_weight has dtype torch.float32"),
    ({"outproj_bias": FLOAT}, "outproj_bias has shape"),
    ({"headdim": None}, "headdim is NoneType, expected an int"),
    ({"headdim": True}, "headdim is bool, expected an int"),
    ({"ngroups": 3}, "ngroups is 3, expected a number that divides the 4 heads"),
    ({"ngroups": 0}, "ngroups is 0, expected at least 1"),
    ({"norm_before_gate": None}, "norm_before_gate is NoneType"),
    ({"state_dtype": torch.float16}, "state_dtype is torch.float16"),
]


@pytest.mark.parametrize(("change", "said"), LAYER_REFUSED)
def test_what_a_layer_cannot_honour_is_refused_by_name(seed: int, change: Made, said: str) -> None:
    with pytest.raises(
        (ValueError, TypeError, NotImplementedError), match=f"^mamba_split_conv1d_scan_combined: {said}"
    ):
        mamba_split_conv1d_scan_combined(**layer(seed) | change)


def test_what_no_norm_uses_is_not_looked_at(seed: int) -> None:
    """FalconH1 without a norm passes None for both."""
    mamba_split_conv1d_scan_combined(**layer(seed) | {"rmsnorm_weight": None, "rmsnorm_eps": None})


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


def test_an_update_writes_a_state_of_16_bits_and_rows_of_a_pool_in_place(scan: Made) -> None:
    scan |= {"dt_limit": (0.0, math.inf), "z": None}
    step = {n: v[:, :1] if n in ("x", "dt", "B", "C") else v for n, v in scan.items()}
    pool = torch.full((4, HEADS, P, N), 7.0, dtype=torch.bfloat16)
    rows = torch.tensor([3, 1], dtype=torch.int32)
    pool[rows.long()] = scan["initial_states"].bfloat16()
    expected, after = by_steps(**step | {"initial_states": pool[rows.long()].double()})
    found = selective_state_update(
        pool,
        scan["x"][:, 0].float(),
        scan["dt"][:, 0, :, None].float().expand(-1, -1, P),
        scan["A"][:, None, None].float().expand(-1, P, N),
        scan["B"][:, 0].float(),
        scan["C"][:, 0].float(),
        scan["D"][:, None].float().expand(-1, P),
        dt_bias=scan["dt_bias"][:, None].float().expand(-1, P),
        dt_softplus=True,
        state_batch_indices=rows,
    )
    torch.testing.assert_close(found.double(), expected[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pool[rows.long()].double(), after, rtol=2**-8, atol=1e-5)  # one rounding to bfloat16
    assert (pool[[0, 2]] == 7).all()


def in_float32(given: Made) -> Made:
    return {name: value.float() if isinstance(value, Tensor) else value for name, value in given.items()}


def test_under_autocast_the_last_projection_alone_is_cast(seed: int) -> None:
    given = in_float32(layer(seed))
    inner = given | {"outproj_weight": None, "outproj_bias": None}
    expected = mamba_split_conv1d_scan_combined(**inner)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mamba_split_conv1d_scan_combined(**inner), expected)  # type: ignore[arg-type]
        out = mamba_split_conv1d_scan_combined(**given)
        assert torch.equal(out, F.linear(expected, given["outproj_weight"], given["outproj_bias"]))  # type: ignore[arg-type]
    assert out.dtype == torch.bfloat16  # type: ignore[union-attr]


def test_the_layer_and_an_update_compile_as_one_graph(seed: int) -> None:
    given = in_float32(layer(seed))
    compiled = torch.compile(mamba_split_conv1d_scan_combined, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(with_gradients(compiled, given), with_gradients(mamba_split_conv1d_scan_combined, given))

    randn = numbers(seed)
    x, dt, A, B = randn(BATCH, HEADS, P), randn(BATCH, HEADS, 1), -randn(HEADS, 1, 1).abs(), randn(BATCH, GROUPS, N)
    step = (x, dt.expand(-1, -1, P), A.expand(-1, P, N), B, B)
    states = [torch.zeros(BATCH, HEADS, P, N, dtype=torch.float64) for _ in range(2)]
    update = torch.compile(selective_state_update, fullgraph=True, backend="aot_eager")
    assert torch.equal(update(states[0], *step), selective_state_update(states[1], *step))
    assert torch.equal(*states)
