"""attention's Hopper kernels in Python: results, gradients and bits in any order of what runs side by side."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from checks import contract
from checks.interpreter import interpreted
from gluon_in_python import emulated

import retrograd
from retrograd.ops.attention import reference
from retrograd.ops.attention.cases import case, ids
from retrograd.ops.infos import info
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import call, options

ON_HOPPER = info("attention").variant(only="hopper")
BOUNDS = (3, 4, 4, 150, 290)
CASES = {
    "full": case("full", (1, 150, 200, 2, 1, 64), dtype="float16", return_lse=True),
    "causal": case("causal", (2, 270, 270, 2, 2, 64), dtype="float16", causal=True),
    "wide": case("wide", (1, 140, 140, 2, 2, 128), dtype="float16", causal=True),
    "wider": case("wider", (1, 140, 140, 1, 1, 256), dtype="float16", causal=True, return_lse=True),
    "wider_keys": case("wider_keys", (1, 270, 270, 2, 1, 192), value=128, dtype="float16", causal=True),
    "packed_sinks": case("packed_sinks", (1, 300, 130, 1, 1, 64), dtype="float16", causal=True, sinks=True,
                         packed=((3, 4, 90, 90, 290), (3, 4, 10, 60, 120))),
    "groups": case("groups", (1, 200, 200, 4, 1, 64), dtype="float16", causal=True, sinks=True),
    "fewer_keys": case("fewer_keys", (1, 300, 100, 2, 2, 64), dtype="float16", causal=True),
    "fewer_keys_sinks": case("fewer_keys_sinks", (1, 300, 100, 1, 1, 64), dtype="float16", causal=True, sinks=True),
    "window": case("window", (1, 400, 380, 1, 1, 64), dtype="float16", window=(90, 60), return_lse=True),
    "packed": case("packed", (1, 300, 300, 2, 1, 64), dtype="float16", causal=True, sinks=True,
                   packed=(BOUNDS, BOUNDS)),
    "packed_keys": case("packed_keys", (1, 300, 320, 1, 1, 128), dtype="float16", window=(40, 200), return_lse=True,
                        packed=((2, 3, 120, 296), (0, 7, 150, 308))),
    "segments": case("segments", (2, 150, 150, 1, 1, 64), dtype="float16", causal=True, return_lse=True, sinks=True,
                     segments=(ids((1, 20), (0, 130)), ids((3, 120), (-1, 9), (4, 21)))),
    "segments_wide": case("segments_wide", (2, 150, 150, 1, 1, 128), dtype="float16",
                          segments=(ids((1, 30), (0, 120)), ids((-3, 20), (-1, 9), (4, 121)))),
    "wider_packed": case("wider_packed", (1, 300, 320, 2, 1, 192), value=128, dtype="float16", window=(40, 200),
                         packed=((2, 3, 120, 296), (0, 7, 150, 308)), return_lse=True),
    "wider_segments": case("wider_segments", (2, 90, 90, 1, 1, 256), dtype="float16", sinks=True,
                           segments=(ids((1, 20), (0, 70)), ids((3, 60), (-1, 9), (4, 21)))),
    "softcap": case("softcap", (1, 150, 200, 2, 1, 128), dtype="float16", causal=True, softcap=2.0, sinks=True),
    "wider_softcap": case("wider_softcap", (1, 100, 150, 2, 1, 160), dtype="float16", softcap=2.0, return_lse=True),
    "narrow": case("narrow", (1, 200, 200, 4, 2, 32), dtype="float16", causal=True, sinks=True, return_lse=True),
    "narrow_packed": case("narrow_packed", (1, 300, 320, 1, 1, 40), dtype="float16", window=(40, 200),
                          packed=((2, 3, 120, 296), (0, 7, 150, 308))),
    "padded": case("padded", (1, 140, 140, 1, 1, 104), dtype="float16", causal=True),
    "padded_less": case("padded_less", (1, 140, 140, 1, 1, 80), value=96, dtype="float16", causal=True),
    "other_values": case("other_values", (1, 140, 140, 2, 1, 256), value=128, dtype="float16", causal=True),
    "apart_packed": case("apart_packed", (1, 300, 320, 2, 1, 136), dtype="float16", window=(40, 200), return_lse=True,
                         packed=((2, 3, 120, 296), (0, 7, 150, 308))),
    "bias": case("bias", (2, 150, 200, 4, 2, 64), dtype="float16", bias=(1, 4, 150, 200), bias_dtype="float16",
                 sinks=True, return_lse=True),
    "bias_copied": case("bias_copied", (2, 140, 141, 2, 1, 128), dtype="float16", bias=(2, 1, 140, 141),
                        bias_dtype="float16", causal=True, return_lse=True),
    "bias_of_keys": case("bias_of_keys", (2, 70, 304, 2, 2, 64), dtype="float16", bias=(2, 1, 1, 304),
                         bias_dtype="float16", window=(100, 40), softcap=2.0),
    "bias_packed": case("bias_packed", (1, 300, 320, 2, 1, 64), dtype="float16", bias=(1, 2, 300, 320),
                        bias_dtype="float16", window=(40, 200), packed=((2, 3, 120, 296), (0, 7, 150, 308)),
                        return_lse=True),
    "bias_segments": case("bias_segments", (2, 90, 90, 2, 1, 64), dtype="float16", bias=(2, 1, 90, 90),
                          bias_dtype="float16", segments=(ids((1, 20), (0, 70)), ids((3, 60), (-1, 9), (4, 21)))),
    "segments_of_a_step": case("segments_of_a_step", (1, 30, 30, 1, 1, 64), dtype="float16",
                               segments=(tuple(range(30)),)),
}  # fmt: skip


QUICK = ("groups", "fewer_keys_sinks", "packed_keys", "segments", "bias_of_keys")
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("name", EACH)
def test_they_keep_the_error_budget_in_any_order(name: str, seed: int) -> None:
    with interpreted("sm_90"), emulated(seed):
        # One draw, always the same: the error of a few heads' sinks differs much from draw to draw.
        contract.check_errors(ON_HOPPER, CASES[name], "cpu", 1, most_draws=1)


@pytest.mark.parametrize("name", ["segments_of_a_step", pytest.param("wider", marks=pytest.mark.slow),
                                  pytest.param("softcap", marks=pytest.mark.slow)])  # fmt: skip
def test_a_nan_in_a_query_is_one_in_its_result_and_its_gradient(name: str, seed: int) -> None:
    inputs, gradients = contract.drawn(ON_HOPPER, CASES[name], "cpu", seed)
    inputs["q"][0, 5, 0, 3] = torch.nan
    with interpreted("sm_90"), emulated(seed):
        found = call(ON_HOPPER.torch, inputs, options(CASES[name]), gradients)
    for result in ("y", "d q"):
        assert found[result][0, 5, 0].isnan().all(), result
        assert not found[result][0, 4].isnan().any(), result


def with_bias(inputs: dict[str, Any], bias: torch.Tensor, seed: int, **more: Any) -> torch.Tensor:
    """The result and lse side by side."""
    with interpreted("sm_90"), emulated(seed):
        out, lse = retrograd.attention(**inputs, bias=bias, return_lse=True, **more)
    return torch.cat([out.float(), lse.transpose(1, 2)[..., None]], 3)


def test_keys_are_hidden_by_a_bias(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs: dict[str, Any] = {name: torch.randn(1, 140, 2, 64, generator=generator).half() for name in "qkv"}
    bias = torch.randn(1, 1, 140, 140, generator=generator).half()
    bias[..., 130:] = torch.finfo(bias.dtype).min
    bias[..., 3:9] = bias[..., 20, :] = -torch.inf
    found = with_bias(inputs, bias, seed)
    assert (found[:, 20, :, :-1] == 0).all()
    assert (found[:, 20, :, -1] == -torch.inf).all()
    seen = [*range(3), *range(9, 130)]
    kept = {name: array if name == "q" else array[:, seen] for name, array in inputs.items()}
    out, lse = reference.attention(**kept, bias=bias[..., seen], return_lse=True)
    torch.testing.assert_close(found[..., :-1], out.float(), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(found[..., -1], lse.transpose(1, 2), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("D", [64, pytest.param(128, marks=pytest.mark.slow)])
def test_strides_of_a_bias_and_the_number_of_queries_change_no_bits(D: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs: dict[str, Any] = {name: torch.randn(2, 150, 2, D, generator=generator).half() for name in "qkv"}
    one = torch.randn(1, 2, 150, 150, generator=generator).half()
    expected = with_bias(inputs, one, seed, causal=True)
    wide = torch.zeros(2, 2, 160, 160).half()
    wide[..., :150, :150] = one
    for other in (one.expand(2, 2, 150, 150), wide[:, :, :150, :150], one.mT.contiguous().mT):
        assert_same_bits({"found": with_bias(inputs, other, seed, causal=True)}, {"found": expected}, "strides")
    kept = {name: array[:, 149:] if name == "q" else array for name, array in inputs.items()}
    assert_same_bits(
        {"found": with_bias(kept, one[:, :, 149:], seed, causal=True)}, {"found": expected[:, 149:]}, "one"
    )
    kept = {name: array[:, 100:101] if name == "q" else array[:, :101] for name, array in inputs.items()}
    cut = one[:, :, 100:101, :101]
    assert_same_bits({"found": with_bias(kept, cut, seed, causal=True)}, {"found": expected[:, 100:101]}, "fewer keys")
    row = one[:, :, :1]
    expected = with_bias(inputs, row.expand(1, 2, 150, 150).contiguous(), seed, causal=True)
    repeated = {"found": with_bias(inputs, row.expand(2, 2, 150, 150), seed, causal=True)}
    assert_same_bits(repeated, {"found": expected}, "a row that is repeated")
    assert_same_bits({"found": with_bias(inputs, row, seed, causal=True)}, {"found": expected}, "a row that all share")


@pytest.mark.parametrize("D", [64, pytest.param(128, marks=pytest.mark.slow)])
def test_sequences_side_by_side_with_a_bias_have_the_bits_of_each_alone(D: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs: dict[str, Any] = {name: torch.randn(1, 190, 2, D, generator=generator).half() for name in "qkv"}
    bias = torch.randn(1, 2, 190, 190, generator=generator).half()
    bounds = (0, 33, 180, 190)
    ends = torch.tensor(bounds, dtype=torch.int32)
    packed = with_bias(inputs, bias, seed, causal=True, cu_seqlens_q=ends, cu_seqlens_k=ends)
    numbers = torch.repeat_interleave(torch.arange(3, dtype=torch.int32), torch.diff(ends))[None]
    apart = with_bias(inputs, bias, seed, causal=True, segment_ids=numbers)
    for first, end in pairwise(bounds):
        own = {name: array[:, first:end] for name, array in inputs.items()}
        alone = with_bias(own, bias[..., first:end, first:end], seed, causal=True)
        for found in (packed, apart):
            assert_same_bits({"found": found[:, first:end]}, {"found": alone}, f"{first} to {end}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["causal", "groups", "window", "segments", "narrow", "bias", "wider_packed", "apart_packed"]
)
def test_another_order_gives_the_same_bits(name: str, seed: int) -> None:
    found: list[Any] = []
    inputs, gradients = contract.drawn(ON_HOPPER, CASES[name], "cpu", seed)
    for order in range(2):
        with interpreted("sm_90"), emulated(seed + order):
            found.append(call(ON_HOPPER.torch, inputs, options(CASES[name]), gradients))
    assert_same_bits(found[1], found[0], f"{name} in another order")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "name"),
    [
        *((contract.check_packed, name) for name in ("packed", "packed_keys", "wider_packed")),
        *((contract.check_outside, name) for name in ("packed", "packed_keys", "segments", "wider_segments")),
        *((contract.check_batch_invariance, name) for name in ("causal", "segments", "full", "wider_keys", "bias")),
        *((contract.check_structures, name) for name in ("packed", "segments_of_a_step", "fewer_keys")),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_they_keep_the_contract_in_any_order(check: Callable[..., None], name: str, seed: int) -> None:
    with interpreted("sm_90"), emulated(seed):
        check(ON_HOPPER, CASES[name], "cpu", seed)
