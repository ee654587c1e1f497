"""retrograd.compat.flash_attn: results and gradients are those of plain attention, arguments those of flash-attn."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import compat_attention
import pytest
import torch
from compat_calls import close, drawing, gradients
from torch import Tensor

import retrograd
from retrograd.compat import flash_attn
from retrograd.compat.flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from retrograd.compat.flash_attn.layers.rotary import apply_rotary_emb

# Without types, as flash-attn has them: one option decides what is returned.
flash_attn_func: Any = flash_attn.flash_attn_func
flash_attn_kvpacked_func: Any = flash_attn.flash_attn_kvpacked_func
flash_attn_qkvpacked_func: Any = flash_attn.flash_attn_qkvpacked_func
flash_attn_varlen_func: Any = flash_attn.flash_attn_varlen_func
flash_attn_varlen_kvpacked_func: Any = flash_attn.flash_attn_varlen_kvpacked_func
flash_attn_varlen_qkvpacked_func: Any = flash_attn.flash_attn_varlen_qkvpacked_func
flash_attn_with_kvcache: Any = flash_attn.flash_attn_with_kvcache

plain: Any = compat_attention

BATCH, HEADS, GROUPS, DIM, WIDE = 2, 4, 2, 8, 6
OPTIONS: list[dict[str, Any]] = [
    {},
    {"softmax_scale": 0.3},
    {"causal": True},
    {"window_size": (2, 1)},
    {"window_size": (-1, 1)},
    {"window_size": (2, None)},
    {"window_size": (None, None)},
    {"causal": True, "window_size": (2, 5)},
    {"softcap": 1.5},
    {"softcap": -1.0},
    {"deterministic": True},
    {"causal": True, "num_splits": 3, "pack_gqa": True, "sm_margin": 8},
]
ENDS_Q = torch.tensor([0, 3, 3, 7, 9], dtype=torch.int32)  # the second has no queries, the third no keys
ENDS_K = torch.tensor([0, 5, 8, 8, 9], dtype=torch.int32)
SAME = torch.tensor([0, 3, 3, 9], dtype=torch.int32)

named = pytest.mark.parametrize("options", OPTIONS, ids=str)


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in inspect.signature(plain.attention).parameters}


def seen(results: Any) -> tuple[Tensor, Tensor]:
    """Results without the -inf of queries that see nothing, whose gradient is not defined."""
    out, lse = results
    return out, torch.where(lse.isfinite(), lse, 0)


@named
@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (7, 7), (9, 5), (5, 0), (0, 5)])
def test_a_batch_is_attended_to_as_defined(options: dict[str, Any], queries: int, keys: int, seed: int) -> None:
    draw = drawing(seed)
    arrays = {
        "q": draw(BATCH, queries, HEADS, DIM),
        "k": draw(BATCH, keys, GROUPS, DIM),
        "v": draw(BATCH, keys, GROUPS, WIDE),
    }
    found = flash_attn_func(**arrays, **options, return_lse=True)
    expected = plain.attention(**arrays, **plain_options(options))
    close(found, expected)
    close(gradients(seen(found), arrays), gradients(seen(expected), arrays))


@pytest.mark.parametrize("rows", [(), (BATCH,)], ids=["of heads", "of rows"])
def test_slopes_and_sinks_have_gradients(rows: tuple[int, ...], seed: int) -> None:
    draw = drawing(seed)
    arrays = {
        "q": draw(BATCH, 5, HEADS, DIM),
        "k": draw(BATCH, 7, GROUPS, DIM),
        "v": draw(BATCH, 7, GROUPS, WIDE),
        "alibi_slopes": draw(*rows, HEADS),
        "learnable_sink": draw(HEADS),
    }
    found = flash_attn_func(**arrays, return_lse=True)
    expected = plain.attention(**arrays)
    close(found, expected)
    close(gradients(found, arrays), gradients(expected, arrays))


@named
def test_packed_sequences_are_attended_to_as_defined(options: dict[str, Any], seed: int) -> None:
    draw = drawing(seed)
    arrays = {"q": draw(9, HEADS, DIM), "k": draw(9, GROUPS, DIM), "v": draw(9, GROUPS, WIDE)}
    found = flash_attn_varlen_func(*arrays.values(), ENDS_Q, ENDS_K, 4, 5, **options, return_lse=True)
    expected = plain.packed(*arrays.values(), ENDS_Q, ENDS_K, **plain_options(options))
    assert found[1].shape == (HEADS, 9)
    close(found, expected)
    close(gradients(seen(found), arrays), gradients(seen(expected), arrays))


def test_a_packed_sequence_has_its_own_slopes(seed: int) -> None:
    draw = drawing(seed)
    arrays = {"q": draw(9, HEADS, DIM), "k": draw(9, GROUPS, DIM), "v": draw(9, GROUPS, WIDE)}
    slopes, sinks = draw(4, HEADS), draw(HEADS)
    options = {"alibi_slopes": slopes, "learnable_sink": sinks}
    found = flash_attn_varlen_func(*arrays.values(), ENDS_Q, ENDS_K, **options, return_lse=True)
    expected = plain.packed(*arrays.values(), ENDS_Q, ENDS_K, **options)
    close(found, expected)
    arrays |= options
    close(gradients(found, arrays), gradients(expected, arrays))


@pytest.mark.parametrize("sides", ["q", "k", "qk"])
def test_only_the_used_steps_of_a_sequence_take_part(sides: str, seed: int) -> None:
    draw = drawing(seed)
    arrays = {"q": draw(9, HEADS, DIM), "k": draw(9, GROUPS, DIM), "v": draw(9, GROUPS, WIDE)}
    slopes = draw(2, HEADS)
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    used_q, used_k = ([3, 2] if "q" in sides else [4, 5]), ([1, 4] if "k" in sides else [4, 5])
    used = {
        f"seqused_{side}": torch.tensor(n, dtype=torch.int32)
        for side, n in (("q", used_q), ("k", used_k))
        if side in sides
    }
    found = flash_attn_varlen_func(
        *arrays.values(), ends, ends, causal=True, alibi_slopes=slopes, return_lse=True, **used
    )
    parts = [
        plain.attention(
            arrays["q"][None, begin : begin + steps],
            arrays["k"][None, begin : begin + others],
            arrays["v"][None, begin : begin + others],
            causal=True,
            alibi_slopes=slopes[n],
        )
        for n, (begin, steps, others) in enumerate(zip((0, 4), used_q, used_k, strict=True))
    ]
    out, lse = torch.zeros(9, HEADS, WIDE, dtype=torch.float64), torch.full((HEADS, 9), -torch.inf, dtype=torch.float64)
    for begin, steps, (own, own_lse) in zip((0, 4), used_q, parts, strict=True):
        out[begin : begin + steps], lse[:, begin : begin + steps] = own[0], own_lse[0]
    close(found, (out, lse))
    close(gradients(seen(found), arrays), gradients(seen((out, lse)), arrays))


def dropped(call: Callable[..., Any], *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return call(*arguments, dropout_p=0.3, causal=True, return_attn_probs=True)


def test_the_sign_of_the_probabilities_says_which_pairs_are_dropped(seed: int) -> None:
    draw = drawing(seed)
    arrays = {"q": draw(BATCH, 5, HEADS, DIM), "k": draw(BATCH, 7, GROUPS, DIM), "v": draw(BATCH, 7, GROUPS, WIDE)}
    out, lse, pairs = dropped(flash_attn_func, *arrays.values())
    expected = plain.attention(*arrays.values(), causal=True, dropout_p=0.3, kept=pairs >= 0)
    close((out, lse), expected)
    close(gradients((out, lse), arrays), gradients(expected, arrays))
    assert pairs.shape == (BATCH, HEADS, 5, 7)
    close(pairs.abs().sum(-1), torch.ones(BATCH, HEADS, 5, dtype=torch.float64))


def test_the_sign_of_the_probabilities_of_packed_sequences(seed: int) -> None:
    draw = drawing(seed)
    arrays = {"q": draw(9, HEADS, DIM), "k": draw(9, GROUPS, DIM), "v": draw(9, GROUPS, WIDE)}
    out, lse, pairs = dropped(flash_attn_varlen_func, *arrays.values(), ENDS_Q, ENDS_K)
    assert pairs.shape == (4, HEADS, 4, 5)
    close((out, lse), plain.packed(*arrays.values(), ENDS_Q, ENDS_K, causal=True, dropout_p=0.3, kept=pairs >= 0))


def test_more_probabilities_than_a_head_has_channels(seed: int) -> None:
    q, k = torch.randn(1, 3, 2, DIM), torch.randn(1, 600, 1, DIM)
    _, _, pairs = flash_attn_func(q, k, k, 0.25, return_attn_probs=True)
    assert pairs.shape == (1, 2, 3, 600)
    share = (pairs < 0).double().mean()
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / pairs.numel()) ** 0.5


def test_the_seed_of_dropout_comes_from_the_generator_of_pytorch(seed: int) -> None:
    q = drawing(seed)(1, 9, HEADS, DIM)
    torch.manual_seed(seed)
    first, second = flash_attn_func(q, q, q, 0.5), flash_attn_func(q, q, q, 0.5)
    assert not torch.equal(first, second)
    torch.manual_seed(seed)
    assert torch.equal(first, flash_attn_func(q, q, q, 0.5))


def test_without_dropout_the_probabilities_are_empty() -> None:
    q = torch.randn(1, 3, 2, DIM)
    assert flash_attn_func(q, q, q, return_attn_probs=True)[2].numel() == 0


@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "window_size": (2, 0), "softcap": 3.0, "dropout_p": 0.2}], ids=str
)
@pytest.mark.parametrize("sequences", [None, SAME], ids=["batch", "packed sequences"])
def test_arrays_in_one_give_the_same_bits(options: dict[str, Any], sequences: Tensor | None, seed: int) -> None:
    rows = (9,) if sequences is not None else (BATCH, 9)
    qkv = drawing(seed)(*rows, 3, HEADS, DIM, dtype=torch.float32)
    slopes = torch.rand(3 if sequences is not None else BATCH, HEADS)
    bounds = () if sequences is None else (sequences, sequences, 6, 6)
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (flash_attn_varlen_func if bounds else flash_attn_func, (*qkv.unbind(-3), *bounds)),
        (
            flash_attn_varlen_kvpacked_func if bounds else flash_attn_kvpacked_func,
            (qkv.select(-3, 0), qkv.narrow(-3, 1, 2), *bounds),
        ),
        (flash_attn_varlen_qkvpacked_func if bounds else flash_attn_qkvpacked_func, (qkv, *bounds[::2])),
    ]
    results = []
    for call, arrays in calls:
        torch.manual_seed(seed)
        out, lse, pairs = call(*arrays, **options, alibi_slopes=slopes, return_attn_probs=True)
        results.append((out, lse, pairs, *torch.autograd.grad((out.sum() + out.square().sum() + lse.sum()), qkv)))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_heads_of_queries_keys_and_values_side_by_side_give_the_same_bits(seed: int) -> None:
    qkv = drawing(seed)(BATCH, 5, HEADS + 2 * GROUPS, DIM)
    q, k, v = qkv.split([HEADS, GROUPS, GROUPS], 2)
    assert torch.equal(flash_attn_qkvpacked_func(qkv, num_heads_q=HEADS), flash_attn_func(q, k, v))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("indexed", [False, True], ids=["", "indexed"])
@pytest.mark.parametrize(
    ("new", "turned"), [(0, ""), (1, ""), (3, ""), (1, "halves"), (1, "neighbours"), (3, "halves"), (3, "neighbours")]
)
def test_caches_are_written_and_attended_to(
    new: int, causal: bool, padded: bool, indexed: bool, turned: str, seed: int
) -> None:
    draw = drawing(seed)
    rows, capacity, steps = (4 if indexed else BATCH), 9, max(new, 1)
    q, k_cache, v_cache = (
        draw(*shape).detach()
        for shape in ((BATCH, steps, HEADS, DIM), (rows, capacity, GROUPS, DIM), (rows, capacity, GROUPS, WIDE))
    )
    k, v = draw(BATCH, new, GROUPS, DIM).detach(), draw(BATCH, new, GROUPS, WIDE).detach()
    lengths = torch.tensor([6, 4], dtype=torch.int32)
    pads = torch.tensor([0, 3], dtype=torch.int32) if padded else None
    which = torch.tensor([3, 1], dtype=torch.int32) if indexed else None
    angles = draw(capacity, 3).detach()
    tables = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "rotary_interleaved": turned == "neighbours"}

    caches = k_cache.clone(), v_cache.clone()
    found = flash_attn_with_kvcache(
        q,
        *caches,
        *((k, v) if new else ()),
        cache_seqlens=lengths,
        cache_batch_idx=which,
        cache_leftpad=pads,
        causal=causal,
        **(tables if turned else {}),
    )
    if turned:

        def turn(x: Tensor, moves: bool) -> Tensor:
            positions = lengths[:, None] + torch.arange(x.shape[1]) * moves
            return rotated(x, angles.cos()[positions], angles.sin()[positions], turned == "neighbours")

        q, k = turn(q, causal), turn(k, True)
    for n in range(BATCH):
        row = n if which is None else int(which[n])
        length, first = int(lengths[n]), 0 if pads is None else int(pads[n])
        k_cache[row, length : length + new], v_cache[row, length : length + new] = k[n], v[n]
        keys, values = (cache[row : row + 1, first : length + new] for cache in (k_cache, v_cache))
        close(found[n : n + 1], plain.attention(q[n : n + 1], keys, values, causal=causal)[0])
    close(caches, (k_cache, v_cache))


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The definition: pairs of channels as complex numbers, times those of their angles."""
    pairs = cos.shape[-1]
    x, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    real, imaginary = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :pairs], x[..., pairs:])
    turned = torch.complex(real, imaginary) * torch.complex(cos, sin)[..., None, :]
    parts = torch.view_as_real(turned)
    joined = parts.flatten(-2) if interleaved else torch.cat(parts.unbind(-1), -1)
    return torch.cat((joined, rest), -1)


def test_options_of_a_step_over_caches(seed: int) -> None:
    draw = drawing(seed)
    q, k_cache, v_cache = (draw(BATCH, t, HEADS, DIM).detach() for t in (2, 9, 9))
    options: dict[str, Any] = {
        "window_size": (4, 0),
        "softcap": 2.0,
        "softmax_scale": 0.4,
        "alibi_slopes": draw(BATCH, HEADS),
    }
    found = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=7, return_softmax_lse=True, **options)
    expected = plain.attention(q, k_cache[:, :7], v_cache[:, :7], **options)
    close(found, expected)
    close(flash_attn_with_kvcache(q, k_cache, v_cache), plain.attention(q, k_cache, v_cache)[0])


def test_generation_has_the_bits_of_the_sequence(seed: int) -> None:
    q, k, v = (torch.randn(BATCH, 9, HEADS, DIM) for _ in range(3))
    whole = flash_attn_func(q, k, v, causal=True, window_size=(5, 0))
    caches = torch.zeros(2, BATCH, 16, HEADS, DIM)
    for t in range(9):
        step = (array[:, t : t + 1] for array in (q, k, v))
        first, *new = step
        out = flash_attn_with_kvcache(first, *caches, *new, cache_seqlens=t, causal=True, window_size=(5, 0))
        assert torch.equal(out, whole[:, t : t + 1])


def test_an_empty_batch() -> None:
    empty = torch.zeros(0, 3, HEADS, DIM)
    assert flash_attn_func(empty, empty, empty).shape == empty.shape
    assert flash_attn_with_kvcache(empty, empty, empty).shape == empty.shape
    nothing, none = torch.zeros(0, HEADS, DIM), torch.zeros(2, dtype=torch.int32)
    assert flash_attn_varlen_func(nothing, nothing, nothing, none, none, 0, 0).shape == nothing.shape


ORDER: dict[Callable[..., Any], str] = {
    flash_attn_func: "q k v",
    flash_attn_kvpacked_func: "q kv",
    flash_attn_qkvpacked_func: "qkv",
    flash_attn_varlen_func: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
    flash_attn_varlen_kvpacked_func: "q kv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
    flash_attn_varlen_qkvpacked_func: "qkv cu_seqlens max_seqlen",
}
SHARED = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs"
DEFAULTS = [0.0, None, False, (-1, -1), 0.0, None, False, False]


@pytest.mark.parametrize("function", ORDER, ids=lambda function: function.__name__)
def test_arguments_have_the_order_and_defaults_of_flash_attn(function: Callable[..., Any]) -> None:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    last = ["block_table"] if function is flash_attn_varlen_func else []
    assert [p.name for p in parameters] == [*ORDER[function].split(), *SHARED.split(), *last]
    assert [p.default for p in parameters][len(ORDER[function].split()) :] == DEFAULTS + [None] * len(last)


def test_arguments_of_the_cache_have_the_order_of_flash_attn() -> None:
    parameters = inspect.signature(flash_attn_with_kvcache).parameters.values()
    found = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert " ".join(found) == (
        "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table "
        "softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse"
    )


def test_a_call_by_position(seed: int) -> None:
    q = drawing(seed)(BATCH, 5, HEADS, DIM)
    slopes = torch.rand(HEADS, dtype=torch.float64)
    found = flash_attn_func(q, q, q, 0.0, 0.3, True, (2, 0), 1.5, slopes, False, True)
    expected = plain.attention(
        q, q, q, softmax_scale=0.3, causal=True, window_size=(2, 0), softcap=1.5, alibi_slopes=slopes
    )
    close(found[:2], expected)


ROWS = torch.ones(BATCH, 3, HEADS, DIM)
GOOD: dict[Callable[..., Any], dict[str, Any]] = {
    flash_attn_func: {"q": ROWS, "k": ROWS, "v": ROWS},
    flash_attn_kvpacked_func: {"q": ROWS, "kv": torch.ones(BATCH, 3, 2, HEADS, DIM)},
    flash_attn_qkvpacked_func: {"qkv": torch.ones(BATCH, 3, 3, HEADS, DIM)},
    flash_attn_varlen_func: {
        "q": ROWS[0],
        "k": ROWS[0],
        "v": ROWS[0],
        "cu_seqlens_q": SAME[:2],
        "cu_seqlens_k": SAME[:2],
    },
    flash_attn_varlen_kvpacked_func: {
        "q": ROWS[0],
        "kv": torch.ones(3, 2, HEADS, DIM),
        "cu_seqlens_q": SAME[:2],
        "cu_seqlens_k": SAME[:2],
    },
    flash_attn_varlen_qkvpacked_func: {"qkv": torch.ones(3, 3, HEADS, DIM), "cu_seqlens": SAME[:2]},
    flash_attn_with_kvcache: {"q": ROWS, "k_cache": ROWS, "v_cache": ROWS},
}
DESCALES = "q_descale k_descale v_descale attention_chunk"
MODS = "score_mod score_mod_bwd mask_mod aux_tensors aux_scalars block_sparse_tensors gather_kv_indices qv"
REFUSED = {
    flash_attn_func: f"{DESCALES} {MODS} block_sparse_tensors_bwd",
    flash_attn_qkvpacked_func: DESCALES,
    flash_attn_varlen_func: f"{DESCALES} {MODS} block_table page_table",
    flash_attn_with_kvcache: f"{DESCALES} qv block_table page_table cu_seqlens_q cu_seqlens_k_new rotary_seqlens",
}


@pytest.mark.parametrize(
    ("function", "name"),
    [pytest.param(f, name, id=f"{f.__name__}-{name}") for f, names in REFUSED.items() for name in names.split()],
)
def test_what_cannot_be_done_is_refused_by_name(function: Callable[..., Any], name: str) -> None:
    value = 16 if name == "attention_chunk" else torch.ones(2)
    with pytest.raises(NotImplementedError, match=f"^{function.__name__}: {name} is not supported"):
        function(**GOOD[function], **{name: value})


WRONG: list[tuple[str, Any, str]] = [
    ("window_size", 3, "window_size is 3, expected"),
    ("window_size", (-2, 0), r"window_size is \(-2, 0\)"),
    ("window_size", (1.5, 0), "window_size is"),
    ("softmax_scale", True, "softmax_scale is bool"),
    ("softmax_scale", float("nan"), "softmax_scale is nan"),
    ("softcap", None, "softcap is NoneType"),
    ("softcap", float("nan"), "softcap is nan"),
    ("causal", 2, "causal is 2"),
    ("causal", None, "causal is NoneType"),
    ("alibi_slopes", torch.ones(HEADS + 1), r"alibi_slopes has shape \(5,\)"),
    ("alibi_slopes", [1.0], "alibi_slopes is list"),
]
OF_TRAINING: list[tuple[str, Any, str]] = [
    ("dropout_p", 1.0, "dropout_p is 1.0"),
    ("dropout_p", None, "dropout_p is NoneType"),
    ("deterministic", "yes", "deterministic is str"),
    ("return_attn_probs", 2, "return_attn_probs is 2"),
]


@pytest.mark.parametrize("function", GOOD, ids=lambda function: function.__name__)
def test_wrong_options_are_named(function: Callable[..., Any]) -> None:
    for name, value, text in [*WRONG, *(OF_TRAINING if function in ORDER else [])]:
        with pytest.raises((TypeError, ValueError), match=f"^{function.__name__}: {text}"):
            function(**{**GOOD[function], name: value})


@pytest.mark.parametrize("function", GOOD, ids=lambda function: function.__name__)
def test_wrong_arrays_are_named(function: Callable[..., Any]) -> None:
    for name, good in GOOD[function].items():
        wrong = [
            None,
            [1.0],
            good[..., :1] if good.ndim == 1 else good[0],
            good.int() if good.ndim > 1 else good.float(),
        ]
        wrong += [good.to_sparse()] + ([good[..., :0]] if good.ndim > 1 else [])
        wrong += [good.to("meta")] if len(GOOD[function]) > 1 else []
        for value in wrong:
            with pytest.raises((TypeError, ValueError), match=rf"^{function.__name__}: "):
                function(**{**GOOD[function], name: value})


def test_a_longest_length_that_is_too_short_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^flash_attn_varlen_func: max_seqlen_k is 2, expected at least 3"):
        flash_attn_varlen_func(**GOOD[flash_attn_varlen_func], max_seqlen_k=2)
    with pytest.raises(TypeError, match=r"^flash_attn_varlen_func: max_seqlen_q is float, expected an int"):
        flash_attn_varlen_func(**GOOD[flash_attn_varlen_func], max_seqlen_q=3.0)


def test_more_used_steps_than_a_sequence_has_are_an_error() -> None:
    used = torch.tensor([4])
    with pytest.raises(ValueError, match=r"^flash_attn_varlen_func: seqused_k is \[4\], expected numbers from 0 to"):
        flash_attn_varlen_func(**GOOD[flash_attn_varlen_func], seqused_k=used)


@pytest.mark.parametrize("steps", [1, 2])
def test_one_graph_over_caches_has_the_same_numbers(steps: int, seed: int) -> None:
    q, lengths = torch.randn(BATCH, steps, HEADS, DIM), torch.tensor([1, 3])

    def call(q: Tensor) -> tuple[Tensor, Tensor]:
        caches = torch.zeros(2, BATCH, 6, HEADS, DIM)
        return flash_attn_with_kvcache(q, *caches, q, q, cache_seqlens=lengths, causal=True), caches

    assert all(map(torch.equal, torch.compile(call, fullgraph=True, backend="aot_eager")(q), call(q)))


CACHE: list[tuple[dict[str, Any], str]] = [
    ({"k": ROWS}, "v is None"),
    ({"k": ROWS, "v": ROWS}, "cache_seqlens is None"),
    ({"k": ROWS, "v": ROWS, "cache_seqlens": 1}, r"cache_seqlens is \[1, 1\], expected numbers from 0 to 0"),
    ({"k": ROWS[:, :0, :2], "v": ROWS[:, :0, :2], "cache_seqlens": 0}, "k has shape"),
    ({"k": ROWS.double(), "v": ROWS, "cache_seqlens": 0}, "k has dtype float64"),
    ({"cache_seqlens": 4}, r"cache_seqlens is \[4, 4\]"),
    ({"cache_seqlens": True}, "cache_seqlens is bool"),
    ({"cache_seqlens": torch.ones(3, dtype=torch.int32)}, "cache_seqlens has shape"),
    ({"cache_seqlens": torch.ones(2)}, "cache_seqlens has dtype float32"),
    ({"cache_leftpad": torch.full((2,), 4, dtype=torch.int32)}, r"cache_leftpad is \[4, 4\]"),
    ({"rotary_cos": torch.ones(3, 4)}, "rotary_sin is None"),
    ({"rotary_cos": torch.ones(3, 4), "rotary_sin": torch.ones(3, 4)}, "rotary_cos is 'a tensor', expected None"),
    (
        {"k": ROWS, "v": ROWS, "cache_seqlens": 0, "rotary_cos": torch.ones(2, 4), "rotary_sin": torch.ones(2, 4)},
        "rotary_cos has shape",
    ),
]


@pytest.mark.parametrize(("wrong", "text"), CACHE, ids=[text for _, text in CACHE])
def test_wrong_caches_are_named(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^flash_attn_with_kvcache: {text}"):
        flash_attn_with_kvcache(**GOOD[flash_attn_with_kvcache], **wrong)


def test_a_query_after_the_last_angle_is_an_error() -> None:
    tables = {name: torch.ones(3, 4) for name in ("rotary_cos", "rotary_sin")}
    new = ROWS[:, :1]
    with pytest.raises(ValueError, match=r"rotary_cos has shape \(3, 4\), expected 5 positions, those of q"):
        flash_attn_with_kvcache(ROWS, ROWS.clone(), ROWS.clone(), new, new, cache_seqlens=2, causal=True, **tables)


def test_under_autocast_dtypes_stay(seed: int) -> None:
    q = torch.randn(1, 5, 2, DIM)
    with torch.autocast("cpu"):
        assert flash_attn_func(q, q, q).dtype == torch.float32
        assert flash_attn_func(q.half(), q.half(), q.half()).dtype == torch.float16


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed sequences"])
def test_one_graph_has_the_same_numbers(packed: bool, seed: int) -> None:
    q = drawing(seed)(*(() if packed else (1,)), 9, HEADS, DIM, dtype=torch.float32)

    def call(q: Tensor) -> Any:
        options: dict[str, Any] = {"causal": True, "window_size": (3, 0), "softcap": 5.0}
        if packed:
            return flash_attn_varlen_func(q, q, q, SAME, SAME, 6, 6, **options)
        return flash_attn_func(q, q, q, **options)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), call(q))
    assert torch.equal(*(torch.autograd.grad(f(q).square().sum(), q)[0] for f in (compiled, call)))


@pytest.mark.parametrize("view", ["transposed", "sliced", "broadcast"])
def test_any_strides(view: str, seed: int) -> None:
    x = torch.randn(2, 4, 5, 2 * DIM)
    q = {
        "transposed": x.transpose(1, 2),
        "sliced": x[..., ::2],
        "broadcast": x[:1, :, :, :DIM].expand(2, -1, -1, -1),
    }[view]
    assert torch.equal(
        flash_attn_func(q, q, q), flash_attn_func(*(q.clone(memory_format=torch.contiguous_format),) * 3)
    )


def test_padding_goes_and_comes_back(seed: int) -> None:
    x = drawing(seed)(3, 4, 2, DIM)
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1]])
    steps, indices, ends, longest, used = unpad_input(x, mask)
    assert torch.equal(steps, x[mask.bool()])
    assert (ends.tolist(), ends.dtype, longest, used.tolist()) == ([0, 2, 2, 5], torch.int32, 3, [2, 0, 3])
    back = pad_input(steps, indices, 3, 4)
    assert torch.equal(back, x * mask[..., None, None])
    (dx,) = torch.autograd.grad(back.sum(), x)
    assert torch.equal(dx, mask[..., None, None].expand_as(x).double())
    assert torch.equal(index_first_axis(steps, torch.tensor([4, 0])), steps[[4, 0]])


def test_unused_steps_are_kept_but_not_counted() -> None:
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    unused = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0]])
    steps, _, ends, longest, used = unpad_input(torch.randn(2, 4, DIM), mask, unused)
    assert (len(steps), ends.tolist(), longest, used.tolist()) == (4, [0, 3, 4], 3, [2, 1])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offsets", [0, 2, torch.tensor([1, 4])], ids=str)
def test_rotation(interleaved: bool, offsets: Any, seed: int) -> None:
    draw = drawing(seed)
    x, angles = draw(2, 5, HEADS, DIM), draw(9, 3).detach()
    cos, sin = angles.cos(), angles.sin()
    place = torch.arange(5) + (offsets[:, None] if isinstance(offsets, Tensor) else torch.full((2, 1), offsets))
    expected = rotated(x, cos[place], sin[place], interleaved)
    found = apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offsets)
    close(found, expected)
    close(gradients(found, {"x": x}), gradients(expected, {"x": x}))
    ends = torch.tensor([0, 5, 10], dtype=torch.int32)
    assert torch.equal(
        apply_rotary_emb(x.flatten(0, 1), cos, sin, interleaved, False, offsets, ends), found.flatten(0, 1)
    )
    copy = x.detach().clone()
    assert apply_rotary_emb(copy, cos, sin, interleaved, True, offsets) is copy
    assert torch.equal(copy, found)


def test_a_position_without_angles_is_an_error() -> None:
    table = torch.ones(4, 2)
    with pytest.raises(ValueError, match=r"^apply_rotary_emb: seqlen_offsets is 2, expected positions from 0 to 3"):
        apply_rotary_emb(torch.ones(1, 3, HEADS, DIM), table, table, seqlen_offsets=2)


def test_it_is_the_attention_of_the_library() -> None:
    q = torch.randn(1, 5, HEADS, DIM)
    assert torch.equal(flash_attn_func(q, q, q, causal=True), retrograd.attention(q, q, q, causal=True))
