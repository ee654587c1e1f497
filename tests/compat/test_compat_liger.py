"""retrograd.compat.liger: liger_kernel's norms by name and signature, each argument checked in float64."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from retrograd.compat import liger
from retrograd.compat.liger import LigerRMSNorm, liger_fused_add_rms_norm, liger_rms_norm
from retrograd.testing.budget import rounding

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
ROWS, N = 24, 64
REQUIRED = inspect.Parameter.empty

FUNCTION = {"eps": REQUIRED, "offset": 0.0, "casting_mode": "llama", "in_place": True}
SIGNATURES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "liger_rms_norm": (liger_rms_norm, {"X": REQUIRED, "W": REQUIRED, **FUNCTION}),
    "liger_fused_add_rms_norm": (
        liger_fused_add_rms_norm, {"X": REQUIRED, "R": REQUIRED, "W": REQUIRED, **FUNCTION}),
    "LigerRMSNorm": (LigerRMSNorm, {
        "hidden_size": REQUIRED, "eps": 1e-6, "offset": 0.0, "casting_mode": "llama", "init_fn": "ones",
        "in_place": True, "row_mode": None, "elementwise_affine": True}),
    "LigerRMSNorm.forward": (LigerRMSNorm.forward, {"self": REQUIRED, "hidden_states": REQUIRED}),
}  # fmt: skip


def draw(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def exact(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def norm(S: Tensor, W: Tensor | float, eps: float, offset: float) -> Tensor:
    return S / (S.square().mean(-1, keepdim=True) + eps).sqrt() * (W + offset)


def assert_rounded_once(result: Tensor, meaning: Tensor) -> None:
    """Assert an error of one rounding, plus float32 sums of 64 terms at 2^-24 each and as much in intermediates."""
    allowed = rounding(meaning, result.dtype) + 2.0**-17 * meaning.abs().max()
    assert ((result.double() - meaning).abs() <= allowed).all()


@pytest.fixture(autouse=True)
def _seeded(seed: int) -> None:
    torch.manual_seed(seed)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_is_liger_s(name: str) -> None:
    ours, theirs = SIGNATURES[name]
    assert {p.name: p.default for p in inspect.signature(ours).parameters.values()} == theirs
    assert list(inspect.signature(ours).parameters) == list(theirs)


@pytest.mark.parametrize("W_dtype", [F32, BF16, F16])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_rms_norm_and_its_gradients_in_every_pair_of_dtypes(dtype: torch.dtype, W_dtype: torch.dtype) -> None:
    X, W, dY = draw(2, ROWS // 2, N, dtype=dtype), draw(N, dtype=W_dtype), torch.randn(2, ROWS // 2, N).to(dtype)
    Y = liger_rms_norm(X, W, 1e-6)
    assert Y.dtype == dtype
    X64, W64 = exact(X, W)
    meaning = norm(X64, W64, 1e-6, 0.0)
    assert_rounded_once(Y, meaning)
    for ours, gradient in zip(
        torch.autograd.grad(Y, (X, W), dY), torch.autograd.grad(meaning, (X64, W64), dY.double()), strict=True
    ):
        assert_rounded_once(ours, gradient)


@pytest.mark.parametrize(("eps", "offset"), [(0.5, 0.0), (1e-6, 1.0), (1e-3, -0.25)])
def test_eps_is_added_to_the_mean_square_and_offset_to_the_weight(eps: float, offset: float) -> None:
    X, W, dY = draw(ROWS, N, dtype=BF16), draw(N), torch.randn(ROWS, N).bfloat16()
    Y = liger_rms_norm(X, W, eps, offset)
    X64, W64 = exact(X, W)
    meaning = norm(X64, W64, eps, offset)
    assert_rounded_once(Y, meaning)
    for ours, gradient in zip(
        torch.autograd.grad(Y, (X, W), dY), torch.autograd.grad(meaning, (X64, W64), dY.double()), strict=True
    ):
        assert_rounded_once(ours, gradient)


@pytest.mark.parametrize("mode", ["llama", "none", 0, 1, -1])
def test_every_casting_mode_computes_as_gemma(mode: Any) -> None:
    X, R, W = draw(ROWS, N, dtype=BF16), draw(ROWS, N, dtype=BF16), draw(N, dtype=BF16)
    torch.testing.assert_close(
        liger_rms_norm(X, W, 1e-6, 1.0, mode), liger_rms_norm(X, W, 1e-6, 1.0, "gemma"), rtol=0, atol=0
    )
    torch.testing.assert_close(
        liger_fused_add_rms_norm(X, R, W, 1e-6, 0.0, mode),
        liger_fused_add_rms_norm(X, R, W, 1e-6, 0.0, "gemma"),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_llama_s_own_arithmetic_is_two_roundings_away(dtype: torch.dtype) -> None:
    """Llama rounds before and after the weight, we only after: the results differ by at most these three roundings."""
    X, W = draw(ROWS, N, dtype=dtype), draw(N)
    X_hat = (X.float() * torch.rsqrt(X.float().square().mean(-1, keepdim=True) + 1e-6)).to(dtype)
    llama = (X_hat * W).to(dtype).double()
    ours = liger_rms_norm(X, W, 1e-6).double()
    meaning = norm(X.double(), W.double(), 1e-6, 0.0)
    allowed = 3.1 * rounding(meaning, dtype) + 2.0**-17 * meaning.abs().max()  # and second-order terms
    assert ((ours - llama).abs() <= allowed).all()


def test_the_incoming_gradient_is_not_written_to_whatever_in_place_says() -> None:
    X, R, W, dY = draw(ROWS, N), draw(ROWS, N), draw(N), torch.randn(ROWS, N)
    before = dY.clone()
    (dX,) = torch.autograd.grad(liger_rms_norm(X, W, 1e-6, in_place=True), X, dY)
    (same,) = torch.autograd.grad(liger_rms_norm(X, W, 1e-6, in_place=False), X, dY)
    torch.autograd.grad(liger_fused_add_rms_norm(X, R, W, 1e-6, in_place=True), X, (dY, dY))
    assert torch.equal(dY, before)
    assert torch.equal(dX, same)


def test_without_a_weight_the_offset_is_not_used() -> None:
    X, R = draw(ROWS, N), draw(ROWS, N)
    assert_rounded_once(liger_rms_norm(X, None, 1e-6, offset=1.0), norm(X.double(), 1.0, 1e-6, 0.0))
    assert_rounded_once(
        liger_fused_add_rms_norm(X, R, None, 1e-6, offset=1.0)[0], norm((X + R).double(), 1.0, 1e-6, 0.0)
    )


@pytest.mark.parametrize("R_dtype", [F32, BF16, F16])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_fused_add_returns_the_norm_and_the_sum_with_gradients_through_both(
    dtype: torch.dtype, R_dtype: torch.dtype, offset: float
) -> None:
    X, R, W = draw(ROWS, N, dtype=dtype), draw(ROWS, N, dtype=R_dtype), draw(N)
    dY, dS = torch.randn(ROWS, N).to(dtype), torch.randn(ROWS, N).to(dtype)
    Y, S = liger_fused_add_rms_norm(X, R, W, 1e-6, offset)
    assert Y.dtype == S.dtype == dtype

    rounded = (X.float() + R.float()).to(torch.promote_types(dtype, R_dtype))
    assert torch.equal(S, rounded.to(dtype))
    X64, R64, W64 = exact(X, R, W)
    S64 = X64 + R64
    Y64 = norm(S64 + (rounded.double() - S64).detach(), W64, 1e-6, offset)
    assert_rounded_once(Y, Y64)
    gradients = torch.autograd.grad((Y, S), (X, R, W), (dY, dS), retain_graph=True)
    meaning = torch.autograd.grad((Y64, S64), (X64, R64, W64), (dY.double(), dS.double()), retain_graph=True)
    for ours, gradient in zip(gradients, meaning, strict=True):
        assert_rounded_once(ours, gradient)
    (dX,) = torch.autograd.grad(Y, X, dY)
    assert_rounded_once(dX, torch.autograd.grad(Y64, X64, dY.double())[0])


@pytest.mark.parametrize("row_mode", [None, True, False])
def test_the_module_is_the_function_with_its_own_weight(row_mode: bool | None) -> None:
    module = LigerRMSNorm(N, 1e-3, 1.0, "gemma", "zeros", in_place=False, row_mode=row_mode)
    assert module.weight is not None
    torch.nn.init.normal_(module.weight)
    X = draw(2, 5, N, dtype=BF16)
    Y = module(X)
    assert torch.equal(Y, liger_rms_norm(X, module.weight, 1e-3, 1.0, "gemma"))
    Y.float().sum().backward()
    assert module.weight.grad is not None


@pytest.mark.parametrize(("init_fn", "value"), [("ones", 1.0), ("zeros", 0.0)])
def test_the_state_is_a_weight_that_starts_as_init_fn_says(init_fn: str, value: float) -> None:
    state = LigerRMSNorm(N, init_fn=init_fn).state_dict()
    assert list(state) == ["weight"]
    assert torch.equal(state["weight"], torch.full((N,), value))


def test_without_elementwise_affine_there_is_no_weight_and_no_state() -> None:
    module = LigerRMSNorm(N, offset=1.0, elementwise_affine=False)
    assert module.weight is None
    assert not module.state_dict()
    X = draw(ROWS, N)
    assert_rounded_once(module(X), norm(X.double(), 1.0, 1e-6, 0.0))


def test_the_module_has_the_attributes_that_patches_of_models_set() -> None:
    module = LigerRMSNorm(N)
    module.variance_epsilon, module.offset, module.in_place, module.row_mode = 0.5, 1.0, False, True
    X = draw(ROWS, N)
    assert torch.equal(module(X), liger_rms_norm(X, module.weight, 0.5, 1.0))
    assert repr(module) == "LigerRMSNorm((64,), eps=0.5, offset=1.0, casting_mode='llama')"


@pytest.mark.parametrize("affine", [True, False])
def test_torch_compile_takes_the_module_as_one_graph(affine: bool) -> None:
    module = LigerRMSNorm(N, elementwise_affine=affine)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    X = draw(ROWS, N, dtype=BF16)
    Y, eager = compiled(X), module(X)
    assert torch.equal(Y, eager)
    assert torch.equal(*(torch.autograd.grad(y.float().square().sum(), X)[0] for y in (Y, eager)))


X, W = torch.zeros(4, N), torch.ones(N)
MODES = "'llama' or 'gemma' or 'none'"
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "casting mode": (
        lambda: liger_rms_norm(X, W, 1e-6, casting_mode="qwen"), ValueError,
        f"liger_rms_norm: casting_mode is 'qwen', expected {MODES}"),
    "casting mode by number": (
        lambda: liger_fused_add_rms_norm(X, X, W, 1e-6, casting_mode=2),  # type: ignore[arg-type]
        ValueError, f"liger_fused_add_rms_norm: casting_mode is 2, expected {MODES}"),
    "casting mode of a module": (
        lambda: LigerRMSNorm(N, casting_mode="fp32"), ValueError,
        f"LigerRMSNorm: casting_mode is 'fp32', expected {MODES}"),
    "init_fn": (
        lambda: LigerRMSNorm(N, init_fn="normal"), ValueError,
        "LigerRMSNorm: init_fn is 'normal', expected 'ones' or 'zeros'"),
    "X of numpy": (
        lambda: liger_rms_norm(X.numpy(), W, 1e-6),  # type: ignore[arg-type]
        TypeError, "liger_rms_norm: X is ndarray, expected a torch.Tensor"),
    "W a list": (
        lambda: liger_rms_norm(X, [1.0] * N, 1e-6),  # type: ignore[arg-type]
        TypeError, "liger_rms_norm: W is list, expected a torch.Tensor"),
    "R absent": (
        lambda: liger_fused_add_rms_norm(X, None, W, 1e-6),  # type: ignore[arg-type]
        TypeError, "liger_fused_add_rms_norm: R is NoneType, expected a torch.Tensor"),
    "R of integers": (
        lambda: liger_fused_add_rms_norm(X, X.long(), W, 1e-6), TypeError,
        "rms_norm: residual has dtype int64, expected float32 or bfloat16 or float16"),
    "R of another shape": (
        lambda: liger_fused_add_rms_norm(X, X[:2], W, 1e-6), ValueError,
        "rms_norm: residual has shape (2, 64), expected the shape of x, (4, 64)"),
    "W of another width": (
        lambda: liger_rms_norm(X, torch.ones(32), 1e-6), ValueError,
        "rms_norm: weight has shape (32,), expected (N=64,) or (heads=4, N=64)"),
    "W in float64": (
        lambda: liger_rms_norm(X, W.double(), 1e-6), TypeError,
        "rms_norm: weight has dtype float64, expected float32"),
    "eps zero": (
        lambda: liger_rms_norm(X, W, 0.0), ValueError,
        "rms_norm: eps is 0.0, expected at least 1.175e-38, the smallest normal float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_call_is_refused_by_name(name: str) -> None:
    call, kind, text = ERRORS[name]
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text


GEMMA = {"LigerRMSNormForGemma", "LigerRMSNormForGemma2", "LigerRMSNormForGemma3", "LigerRMSNormForQwen3Next"}


@pytest.mark.parametrize("name", [each for each in liger.__all__ if each.startswith("LigerRMSNorm")])
def test_the_module_of_a_family_has_its_weight_and_offset(name: str) -> None:
    module = getattr(liger, name)(N, 1e-5)
    assert torch.equal(module.weight.detach(), torch.full((N,), float(name not in GEMMA)))
    X = draw(ROWS, N)
    assert torch.equal(module(X), liger_rms_norm(X, torch.ones(N), 1e-5))
    first = next(iter(list(inspect.signature(type(module).__init__).parameters)[1:]))
    assert first == ("dim" if name.endswith(("Gemma3", "Gemma4")) else "hidden_size")


def test_gemma_4_s_norm_without_a_scale_has_no_weight() -> None:
    module = liger.LigerRMSNormForGemma4(N, with_scale=False)
    X = draw(ROWS, N)
    assert not list(module.parameters())
    assert torch.equal(module(X), liger_rms_norm(X, None, 1e-6))
