"""retrograd.compat.quack: quack's rmsnorm by name and signature, each argument checked in float64."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from retrograd.compat.quack import QuackRMSNorm, rmsnorm, rmsnorm_bwd, rmsnorm_fwd
from retrograd.testing.budget import rounding

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
ROWS, HEADS, N = 24, 3, 64
REQUIRED = inspect.Parameter.empty

ARRAYS = {"x": REQUIRED, "weight": None, "bias": None, "residual": None, "out_dtype": None, "residual_dtype": None}
SIGNATURES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "rmsnorm": (rmsnorm, {**ARRAYS, "eps": 1e-6, "prenorm": False, "weight_offset": 0.0}),
    "rmsnorm_fwd": (rmsnorm_fwd, {**ARRAYS, "eps": 1e-6, "store_rstd": False, "weight_offset": 0.0}),
    "rmsnorm_bwd": (rmsnorm_bwd, {
        "x": REQUIRED, "weight": REQUIRED, "dout": REQUIRED, "rstd": REQUIRED, "dresidual_out": None,
        "has_bias": False, "has_residual": False, "weight_offset": 0.0}),
}  # fmt: skip

# dtypes of x, weight, bias and residual (x is bfloat16, the others absent by default), whether each head has a weight,
# and the other arguments of the call.
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight": {"weight": F32},
    "weight of x's dtype": {"weight": BF16},
    "weight of the other half": {"weight": F16},
    "float32 and narrow parameters": {"x": F32, "weight": BF16, "bias": F16},
    "float16": {"x": F16, "weight": F16},
    "bias": {"weight": F32, "bias": F32},
    "bias alone": {"bias": BF16},
    "eps": {"weight": F32, "eps": 0.5},
    "weight_offset": {"weight": F32, "weight_offset": 1.0},
    "heads": {"weight": F32, "bias": F32, "heads": True},
    "out_dtype": {"weight": F32, "out_dtype": F32},
    "narrow out_dtype": {"x": F32, "weight": F32, "out_dtype": F16},
    "residual": {"weight": F32, "residual": BF16},
    "prenorm": {"weight": F32, "residual": BF16, "prenorm": True},
    "prenorm, float32 stream": {"weight": F32, "residual": F32, "prenorm": True},
    "prenorm, narrow stream": {"x": F32, "weight": F32, "residual": BF16, "prenorm": True},
    "prenorm alone": {"weight": F32, "prenorm": True},
    "residual_dtype as it is": {"weight": F32, "residual": F32, "residual_dtype": F32, "prenorm": True},
    "residual_dtype wider": {"weight": F32, "residual": BF16, "residual_dtype": F32, "prenorm": True},
    "residual_dtype narrower": {"weight": F32, "residual": F32, "residual_dtype": BF16, "prenorm": True},
    "residual_dtype the other half": {"weight": F32, "residual": BF16, "residual_dtype": F16, "prenorm": True},
    "residual_dtype without prenorm": {"weight": F32, "residual": BF16, "residual_dtype": F32},
    "residual_dtype alone": {"weight": F32, "residual_dtype": F32, "prenorm": True},
    "everything": {"weight": F16, "bias": F32, "residual": F32, "residual_dtype": BF16, "out_dtype": F32, "heads": True,
                   "weight_offset": 1.0, "eps": 1e-3, "prenorm": True},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded(seed: int) -> None:
    torch.manual_seed(seed)


def draw(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors and the other arguments of a call."""
    options = dict(CALLS[name])
    heads = (HEADS,) if options.pop("heads", False) else ()
    dtypes = {"x": options.pop("x", BF16)} | {
        name: options.pop(name) for name in ("weight", "bias", "residual") if name in options
    }
    shapes = {"x": (2, ROWS // 2, *heads, N), "weight": (*heads, N), "bias": (*heads, N)}
    shapes["residual"] = shapes["x"]
    return {name: torch.randn(shapes[name]).to(dtype).requires_grad_() for name, dtype in dtypes.items()}, options


def as_written(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, *,
    dtypes: dict[str, torch.dtype], residual_dtype: torch.dtype | None = None, eps: float = 1e-6,
    weight_offset: float = 0.0, prenorm: bool = False, out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, s and rstd by the definition: s is rounded to the dtype of the sum, then normalised."""
    s = x
    if residual is not None:
        summed = F32 if residual_dtype not in (None, dtypes["residual"]) else dtypes["residual"]
        exact = x + residual
        s = exact + (exact.detach().float().to(summed).double() - exact.detach())
    rstd = (s.square().mean(-1) + eps) ** -0.5
    y = s * rstd[..., None]
    if weight is not None:
        y = y * (weight + weight_offset)
    return y if bias is None else y + bias, s, rstd


def assert_rounded_once(result: Tensor, meaning: Tensor) -> None:
    """Assert an error of one rounding, plus float32 sums of 64 terms at 2^-24 each and as much in intermediates."""
    allowed = rounding(meaning, result.dtype) + 2.0**-17 * meaning.abs().max()
    assert ((result.double() - meaning).abs() <= allowed).all()


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_is_quack_s(name: str) -> None:
    ours, theirs = SIGNATURES[name]
    assert {p.name: p.default for p in inspect.signature(ours).parameters.values()} == theirs
    assert list(inspect.signature(ours).parameters) == list(theirs)


@pytest.mark.parametrize("name", CALLS)
def test_rmsnorm_and_its_gradients_are_what_is_written(name: str) -> None:
    tensors, options = draw(name)
    x, residual = tensors["x"], tensors.get("residual")
    y, *stream = result if isinstance(result := rmsnorm(**tensors, **options), tuple) else (result,)
    assert y.dtype == options.get("out_dtype", x.dtype)
    assert len(stream) == options.get("prenorm", False)

    wide: dict[str, Any] = {key: t.detach().double().requires_grad_() for key, t in tensors.items()}
    y64, s64, _ = as_written(**wide, **options, dtypes={key: t.dtype for key, t in tensors.items()})
    assert_rounded_once(y, y64)
    dy = torch.randn(y.shape).to(y.dtype)
    outputs, meanings, incoming = [y], [y64], [dy]
    if stream:
        s = stream[0]
        assert s.dtype == options.get("residual_dtype", x.dtype if residual is None else residual.dtype)
        assert_rounded_once(s, s64)
        ds = torch.randn(s.shape).to(s.dtype)
        outputs, meanings, incoming = [y, s], [y64, s64], [dy, ds]
    gradients = torch.autograd.grad(outputs, list(tensors.values()), incoming)
    expected = torch.autograd.grad(meanings, list(wide.values()), [t.double() for t in incoming])
    for key, ours, gradient in zip(tensors, gradients, expected, strict=True):
        assert ours.dtype == tensors[key].dtype
        if (
            key == "x" and stream and residual is None
        ):  # x receives two gradients in its dtype, which are added in that dtype
            assert ((ours.double() - gradient).abs() <= 4 * rounding(gradient.abs().max(), ours.dtype)).all()
        else:
            assert_rounded_once(ours, gradient)


@pytest.mark.parametrize("name", CALLS)
def test_rmsnorm_fwd_has_the_bits_of_rmsnorm_and_keeps_rstd(name: str) -> None:
    tensors, options = draw(name)
    options.pop("prenorm", None)
    out, s, rstd = rmsnorm_fwd(**tensors, **options, store_rstd=True)
    y, stream = rmsnorm(**tensors, **options, prenorm=True)
    assert torch.equal(out, y)
    assert torch.equal(out, rmsnorm(**tensors, **options, prenorm=False))  # type: ignore[arg-type]
    assert torch.equal(s, stream)
    assert s.dtype == stream.dtype
    assert not out.requires_grad

    wide: dict[str, Any] = {key: t.detach().double() for key, t in tensors.items()}
    rstd64 = as_written(**wide, **options, dtypes={key: t.dtype for key, t in tensors.items()})[2]
    assert rstd is not None
    assert rstd.dtype == F32
    assert rstd.shape == tensors["x"].shape[:-1]
    assert_rounded_once(rstd, rstd64)


def test_rmsnorm_fwd_keeps_no_rstd_unless_asked_and_returns_x_where_there_is_no_sum() -> None:
    x = torch.randn(ROWS, N)
    _, s, rstd = rmsnorm_fwd(x)
    assert rstd is None
    assert s is x


def same_dtypes(call: dict[str, Any]) -> bool:
    """Whether x and s, and weight and bias, have one dtype: rmsnorm_bwd only receives the dtypes of s and weight."""
    x, weight = call.get("x", BF16), call.get("weight")
    return (
        weight is not None
        and call.get("bias", weight) == weight
        and (call.get("residual", x) == call.get("residual_dtype", x) == x)
    )


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if same_dtypes(call)])
def test_rmsnorm_bwd_after_rmsnorm_fwd_has_the_bits_of_autograd(name: str) -> None:
    tensors, options = draw(name)
    options.pop("prenorm", None)
    y, stream = rmsnorm(**tensors, **options, prenorm=True)
    dy, ds = torch.randn(y.shape).to(y.dtype), torch.randn(stream.shape).to(stream.dtype)
    summed = "residual" in tensors
    gradients = torch.autograd.grad([y, stream][: 1 + summed], list(tensors.values()), [dy, ds][: 1 + summed])
    expected = dict(zip(tensors, gradients, strict=True))

    _, s, rstd = rmsnorm_fwd(**tensors, **options, store_rstd=True)
    assert rstd is not None
    dx, dw, db, dresidual = rmsnorm_bwd(
        s, tensors["weight"], dy, rstd, ds if summed else None, "bias" in tensors, summed,
        options.get("weight_offset", 0.0),
    )  # fmt: skip
    assert torch.equal(dx, expected["x"])
    assert dw is not None
    assert torch.equal(dw, expected["weight"])
    assert (db is None) == ("bias" not in tensors)
    assert db is None or torch.equal(db, expected["bias"])
    assert dresidual is (dx if summed else None)


@pytest.mark.parametrize("stream", [None, F32, BF16, F16])
@pytest.mark.parametrize("weight_dtype", [None, F32, BF16, F16])
@pytest.mark.parametrize(("dtype", "dout_dtype"), [(F32, F32), (BF16, BF16), (BF16, F32), (F16, BF16)])
@pytest.mark.parametrize("heads", [False, True])
def test_rmsnorm_bwd_is_what_is_written_with_the_rstd_that_is_given(
    stream: torch.dtype | None,
    weight_dtype: torch.dtype | None,
    dtype: torch.dtype,
    dout_dtype: torch.dtype,
    heads: bool,
) -> None:
    shape = (ROWS, HEADS, N) if heads else (ROWS, N)
    x, dout, rstd = torch.randn(shape).to(dtype), torch.randn(shape).to(dout_dtype), torch.rand(shape[:-1]) + 0.5
    weight = None if weight_dtype is None else torch.randn(shape[1:]).to(weight_dtype)
    dstream = None if stream is None else torch.randn(shape).to(stream)
    offset = 0.0 if weight is None else 1.0
    dx, dw, db, dresidual = rmsnorm_bwd(x, weight, dout, rstd, dstream, weight is not None, True, offset)

    x_hat = x.double() * rstd.double()[..., None]
    g = dout.double() * (1.0 if weight is None else weight.double() + offset)
    dx64 = (g - x_hat * (g * x_hat).mean(-1, keepdim=True)) * rstd.double()[..., None]
    if dstream is not None:
        dx64 = dx64 + dstream.double()
    assert dx.dtype == dtype
    assert_rounded_once(dx, dx64)
    assert dresidual is not None
    assert dresidual.dtype == (stream or dtype)
    assert_rounded_once(dresidual, dx64)
    if weight is None:
        assert dw is None
        assert db is None
        return
    assert dw is not None
    assert db is not None
    assert dw.dtype == db.dtype == weight_dtype
    assert_rounded_once(dw, (dout.double() * x_hat).sum(0))
    assert_rounded_once(db, dout.double().sum(0))


def test_rmsnorm_bwd_returns_what_is_asked_for() -> None:
    x, weight, rstd = torch.randn(ROWS, N), torch.randn(N), torch.rand(ROWS)
    dx, dw, db, dresidual = rmsnorm_bwd(x, weight, x, rstd)
    assert (db, dresidual) == (None, None)
    again, dw_again, _, same = rmsnorm_bwd(x, weight, x, rstd, has_residual=True)
    assert same is again
    assert torch.equal(dx, again)
    assert dw is not None
    assert dw_again is not None
    assert torch.equal(dw, dw_again)
    # A gradient of s whose dtype differs from x is always returned, requested or not.
    half = rmsnorm_bwd(x, weight, x, rstd, x.bfloat16())[3]
    assert half is not None
    assert half.dtype == BF16


def test_rmsnorm_bwd_takes_any_strides_and_no_rows() -> None:
    x, dout, rstd = torch.randn(N, ROWS).T, torch.randn(1, N).expand(ROWS, N), torch.rand(ROWS, 2)[:, 0]
    weight = torch.randn(2 * N)[::2]
    strided = rmsnorm_bwd(x, weight, dout, rstd, has_bias=True)
    dense = rmsnorm_bwd(x.contiguous(), weight.contiguous(), dout.contiguous(), rstd.contiguous(), has_bias=True)
    for ours, meaning in zip(strided[:3], dense[:3], strict=True):
        assert ours is not None
        assert meaning is not None
        assert_rounded_once(ours, meaning.double())
    dx, dw, db, _ = rmsnorm_bwd(x[:0], weight, dout[:0], rstd[:0], has_bias=True)
    assert dx.shape == (0, N)
    assert dw is not None
    assert db is not None
    assert not dw.any()
    assert not db.any()


def test_neither_pass_makes_a_graph() -> None:
    x, weight = torch.randn(ROWS, N, requires_grad=True), torch.randn(N, requires_grad=True)
    out, _, rstd = rmsnorm_fwd(x, weight, store_rstd=True)
    assert rstd is not None
    outputs = (out, rstd, *rmsnorm_bwd(x, weight, out, rstd, has_bias=True))
    assert not any(tensor is not None and tensor.requires_grad for tensor in outputs)


def test_torch_compile_takes_all_three_as_one_graph() -> None:
    def step(x: Tensor, weight: Tensor, residual: Tensor) -> tuple[Any, ...]:
        y, stream = rmsnorm(x, weight, residual=residual, residual_dtype=F32, prenorm=True)
        out, s, rstd = rmsnorm_fwd(x, weight, residual=residual, store_rstd=True)
        assert rstd is not None
        return (y, stream, *rmsnorm_bwd(s, weight, out, rstd, stream.detach(), has_bias=True))

    tensors = torch.randn(ROWS, N).bfloat16(), torch.randn(N), torch.randn(ROWS, N).bfloat16()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), step(*tensors), rtol=0, atol=0)


X, W, RSTD = torch.zeros(4, N), torch.ones(N), torch.ones(4)
KERNEL_DTYPES = "float32 or bfloat16 or float16"
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "x of numpy": (
        lambda: rmsnorm(X.numpy(), W),  # type: ignore[arg-type]
        TypeError, "rmsnorm: x is ndarray, expected a torch.Tensor"),
    "weight a list": (
        lambda: rmsnorm_fwd(X, [1.0] * N),  # type: ignore[arg-type]
        TypeError, "rmsnorm_fwd: weight is list, expected a torch.Tensor"),
    "weight elsewhere": (
        lambda: rmsnorm(X, W.to("meta")), ValueError,
        "rmsnorm: device of weight is 'meta', expected cpu, the device of x"),
    "weight of another width": (
        lambda: rmsnorm_fwd(X, torch.ones(32)), ValueError,
        "rms_norm: weight has shape (32,), expected (N=64,) or (heads=4, N=64)"),
    "out_dtype of integers": (
        lambda: rmsnorm_fwd(X, W, out_dtype=torch.int8), TypeError,
        f"rms_norm: out_dtype has dtype int8, expected {KERNEL_DTYPES}"),
    "out_dtype by name": (
        lambda: rmsnorm_fwd(X, W, out_dtype="float32"),  # type: ignore[arg-type]
        TypeError, "rmsnorm_fwd: out_dtype is str, expected a torch.dtype or None"),
    "residual_dtype of integers": (
        lambda: rmsnorm(X, W, residual=X, residual_dtype=torch.int8), TypeError,
        f"rmsnorm: residual_dtype has dtype int8, expected {KERNEL_DTYPES}"),
    "residual_dtype float64": (
        lambda: rmsnorm_fwd(X, W, residual=X, residual_dtype=torch.float64), TypeError,
        f"rmsnorm_fwd: residual_dtype has dtype float64, expected {KERNEL_DTYPES}"),
    "residual_dtype by name": (
        lambda: rmsnorm(X, W, residual_dtype="float32"),  # type: ignore[arg-type]
        TypeError, "rmsnorm: residual_dtype is str, expected a torch.dtype or None"),
    "residual of integers": (
        lambda: rmsnorm(X, W, residual=X.long(), residual_dtype=F32), TypeError,
        f"rmsnorm: residual has dtype int64, expected {KERNEL_DTYPES}"),
    "eps a string": (
        lambda: rmsnorm_fwd(X, W, eps="1e-6"),  # type: ignore[arg-type]
        TypeError, "rmsnorm_fwd: eps is str, expected a float"),
    "eps zero": (
        lambda: rmsnorm_fwd(X, W, eps=0.0), ValueError,
        "rms_norm: eps is 0.0, expected at least 1.175e-38, the smallest normal float32"),
    "weight_offset absent": (
        lambda: rmsnorm_bwd(X, W, X, RSTD, weight_offset=None),  # type: ignore[arg-type]
        TypeError, "rmsnorm_bwd: weight_offset is NoneType, expected a float"),
    "offset without weight": (
        lambda: rmsnorm(X, weight_offset=1.0), ValueError,
        "rms_norm: weight_offset is 1.0, expected 0.0, since weight is None"),
    "offset without weight, backward": (
        lambda: rmsnorm_bwd(X, None, X, RSTD, weight_offset=1.0), ValueError,
        "rms_norm: weight_offset is 1.0, expected 0.0, since weight is None"),
    "bias without weight, backward": (
        lambda: rmsnorm_bwd(X, None, X, RSTD, has_bias=True), ValueError,
        "rmsnorm_bwd: has_bias is True, expected False, since weight is None"),
    "dout of another shape": (
        lambda: rmsnorm_bwd(X, W, X[:2], RSTD), ValueError,
        "rmsnorm_bwd: dout has shape (2, 64), expected the shape of x, (4, 64)"),
    "dout of integers": (
        lambda: rmsnorm_bwd(X, W, X.long(), RSTD), TypeError,
        f"rmsnorm_bwd: dout has dtype int64, expected {KERNEL_DTYPES}"),
    "dresidual_out of another shape": (
        lambda: rmsnorm_bwd(X, W, X, RSTD, X[:, :2]), ValueError,
        "rmsnorm_bwd: dresidual_out has shape (4, 2), expected the shape of x, (4, 64)"),
    "dresidual_out in float64": (
        lambda: rmsnorm_bwd(X, W, X, RSTD, X.double()), TypeError,
        f"rmsnorm_bwd: dresidual_out has dtype float64, expected {KERNEL_DTYPES}"),
    "rstd of another shape": (
        lambda: rmsnorm_bwd(X, W, X, torch.ones(4, 1)), ValueError,
        "rmsnorm_bwd: rstd has shape (4, 1), expected (4,), one number for each row of x"),
    "rstd in bfloat16": (
        lambda: rmsnorm_bwd(X, W, X, RSTD.bfloat16()), TypeError,
        "rmsnorm_bwd: rstd has dtype bfloat16, expected float32"),
    "rstd not kept": (
        lambda: rmsnorm_bwd(X, W, X, rmsnorm_fwd(X, W)[2]),  # type: ignore[arg-type]
        TypeError, "rmsnorm_bwd: rstd is NoneType, expected a torch.Tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_call_is_refused_by_name(name: str) -> None:
    call, kind, text = ERRORS[name]
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text


def test_the_module_is_pytorch_s_with_quack_s_arguments() -> None:
    module, plain = QuackRMSNorm(64, 1e-3), torch.nn.RMSNorm(64, 1e-3)
    assert module.state_dict().keys() == plain.state_dict().keys()
    x = torch.randn(5, 64)
    torch.testing.assert_close(module(x), plain(x))
    expected = rmsnorm(x.bfloat16(), torch.ones(64).bfloat16(), eps=1e-3)
    torch.testing.assert_close(module.bfloat16()(x.bfloat16()), expected, rtol=0, atol=0)
    torch.testing.assert_close(QuackRMSNorm(64, elementwise_affine=False)(x), torch.nn.RMSNorm(64, 1e-6)(x))
