"""Programs are exported for sizes that are left open: a length, in JAX also a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import torch
from checks import jax_contract
from jax import export

import retrograd.jax as in_jax
from retrograd.core.arch import SUPPORTED
from retrograd.core.jax.passes import Forward
from retrograd.core.spec import Param
from retrograd.jax.nn.embedding import embed
from retrograd.nn import LanguageModel, MambaConfig
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import infos
from retrograd.ops.rms_norm.op import OP as RMS_NORM
from retrograd.testing import jax_call


def test_a_language_model_is_exported_for_every_length() -> None:
    model = LanguageModel(MambaConfig(d_model=16, n_layer=1, vocab_size=32)).eval()
    length = torch.export.Dim("length", min=2, max=4096)
    exported = torch.export.export(model, (torch.randint(32, (2, 32)),), dynamic_shapes=({1: length},)).module()
    for steps in (2, 31, 33, 300):
        tokens = torch.randint(32, (2, steps))
        torch.testing.assert_close(exported(tokens), model(tokens), rtol=0, atol=0)


def arguments(*shapes: str) -> list[Any]:
    """Arrays of these shapes, in which letters are open sizes."""
    scope = export.SymbolicScope()
    return [jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), "float32") for shape in shapes]


def exported(function: Callable[..., Any], *shapes: str) -> export.Exported:
    return export.export(jax.jit(function))(*arguments(*shapes))


@pytest.mark.parametrize("op", infos(), ids=lambda op: op.name)
def test_in_jax_gradients_are_exported_for_every_size_of_batch_and_time(op: OpInfo) -> None:
    """That the results are right is a promise of the contract: `check_export`."""
    case = next(case for case in op.tagged("interpreter") if op.is_representative(case))
    arrays = [jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in case.inputs.values()]
    given = export.symbolic_args_specs(arrays, jax_contract.open_sizes(op, case))
    both = jax_call.forward_and_backward(op.jax(), tuple(case.inputs), case.options)

    def gradients(*arrays: Any) -> Any:
        return both(arrays, jax_call.outputs(op.jax(), tuple(case.inputs), arrays, case.options))[1]

    found = export.export(jax.jit(gradients))(*given).out_avals
    assert [array.shape for array in found] == [array.shape for array in given]


def gradient_of_embed(weight: jax.Array, tokens: jax.Array) -> jax.Array:
    return jax.grad(lambda weight: embed(weight, tokens.astype("int32")).sum())(weight)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "columns": (in_jax.rms_norm, ("B, T, N",), "rms_norm: x has shape (B, T, N), expected a number in place of N"),
    "taps": (
        in_jax.causal_conv1d, ("B, T, 3", "3, W"),
        "causal_conv1d: weight has shape (3, W), expected a number in place of W"),
    "states": (
        in_jax.selective_scan, ("B, T, 3", "B, T, 3", "3, N", "B, T, N", "B, T, N"),
        "selective_scan: A has shape (3, N), expected a number in place of N"),
    "channels of a head": (
        in_jax.ssd, ("B, T, 2, P", "B, T, 2", "2,", "B, T, 1, 4", "B, T, 1, 4"),
        "ssd: x has shape (B, T, 2, P), expected a number in place of P"),
    "size of a head": (
        in_jax.attention, ("B, T, 2, D",) * 3,
        "attention: q has shape (B, T, 2, D), expected a number in place of D"),
    "groups": (
        in_jax.attention, ("B, T, 2, 4", "B, T, G, 4", "B, T, G, 4"),
        "attention: k.shape[2] is G, expected key heads that divide the heads, 2"),
    "size of a head in one array": (
        in_jax.attention_qkvpacked, ("B, T, 3, 2, D",),
        "attention_qkvpacked: qkv has shape (B, T, 3, 2, D), expected a number in place of D"),
    "size of a head of jax's": (
        in_jax.dot_product_attention, ("B, T, 2, D",) * 3,
        "dot_product_attention: query has shape (B, T, 2, D), expected a number in place of D"),
    "tokens": (
        gradient_of_embed, ("8, 2", "B, T"),
        "embed: tokens has shape (B, T), expected numbers, so that the tokens can be sorted for the gradient"),
    "steps of a prefill": (
        in_jax.ssd_prefill, ("B, T, 2, 3", "B, T, 2", "2,", "B, T, 1, 4", "B, T, 1, 4"),
        "ssd_prefill: x has shape (B, T, 2, 3), expected a number of steps, which decides what the window holds"),
    "steps of a prefill of keys": (
        in_jax.gated_delta_rule_prefill, ("B, T, 1, 3", "B, T, 1, 3", "B, T, 2, 4", "B, T, 2", "B, T, 2"),
        "gated_delta_rule_prefill: q has shape (B, T, 1, 3), expected a number of steps, which decides what the window "
        "holds"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_other_sizes_that_are_left_open_are_refused_by_name(what: str) -> None:
    function, shapes, text = REFUSED[what]
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        exported(function, *shapes)
    assert str(raised.value) == text


def test_kernels_are_compiled_for_numbers() -> None:
    (x,) = arguments("B, 64")
    spec = RMS_NORM.spec({"x": Param(x.shape, "float32")}, {})
    with pytest.raises(ValueError, match=r"^rms_norm: x has shape \(B, 64\), expected numbers, for which kernels are"):
        Forward.of(RMS_NORM, spec).program(SUPPORTED["sm_90"])
