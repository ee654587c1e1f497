"""Under autocast, calls have the results and gradients of explicit casts to the bit, on every way into PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from checks.integration import PassThrough
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import retrograd
from retrograd.core.spec import autocast_ranks, shown
from retrograd.ops.infos import infos

BF16 = torch.bfloat16
B, T, H, D, N, W = 2, 7, 2, 8, 4, 3
CAST = {
    "attention": "q k v",
    "attention_qkvpacked": "qkv",
    "causal_conv1d": "x initial_state",
    "causal_conv1d_update": "x state",
    "linear": "x weight bias",
    "linear_scan": "",
    "rms_norm": "",
    "selective_scan": "x B C z",
    "selective_state_update": "x B C z",
    "ssd": "x B C z",
    "gated_delta_rule": "q k v",
    "gated_delta_rule_prefill": "q k v",
    "gated_delta_rule_step": "q k v window.k window.v",
    "gated_delta_rule_update": "q k v",
    "ssd_prefill": "x B C z",
    "ssd_step": "x B C z window.x window.B",
    "ssd_update": "x B C z",
}
Cast = Callable[[Tensor], Tensor]


def test_the_declarations_say_what_is_cast() -> None:
    calls = [call for info in infos() if info.op for call in (info.op.call, *(other.call for other in info.op.others))]
    found = {call.op: " ".join(name for name, ranks in autocast_ranks(call).items() if ranks) for call in calls}
    assert found == CAST
    for call in calls:
        assert set(autocast_ranks(call)) <= set(shown(call).values())


def autocast(enabled: bool = True) -> Any:
    return torch.autocast("cpu", BF16, enabled=enabled)


def cast(tensor: Tensor) -> Tensor:
    return tensor.to(BF16)


def same(tensor: Tensor) -> Tensor:
    return tensor


class Linear(nn.Linear):
    """As autocast computes it, or with its casts written out."""

    def forward(self, x: Tensor, cast: Cast = same) -> Tensor:
        return F.linear(cast(x), cast(self.weight))


def rotated(x: Tensor) -> Tensor:
    """A rotary embedding, in float32."""
    angles = torch.arange(x.shape[1])[:, None, None] / 100.0 ** (torch.arange(x.shape[-1] // 2) / x.shape[-1])
    real, imaginary = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = Linear(D, 3 * H * D, bias=False)
        self.sinks = nn.Parameter(torch.randn(H))
        self.bias = nn.Parameter(torch.randn(1, H, T, T))

    def forward(self, x: Tensor, cast: Cast = same) -> Tensor:
        q, k, v = self.project(x, cast).view(*x.shape[:2], 3, H, D).unbind(2)
        q, k = rotated(q), rotated(k)
        assert q.dtype == torch.float32
        assert v.dtype == BF16
        return retrograd.attention(cast(q), cast(k), v, causal=True, sinks=self.sinks, bias=self.bias)


class Packed(Attention):
    def forward(self, x: Tensor, cast: Cast = same) -> Tensor:
        qkv = self.project(x, cast).view(*x.shape[:2], 3, H, D)
        return retrograd.attention_qkvpacked(cast(qkv.float()), causal=True, sinks=self.sinks, bias=self.bias)


class Scan(nn.Module):
    """x through a convolution, then a scan; what comes of a layer is float32, as after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.project = Linear(D, H * D, bias=False)
        self.select = Linear(H * D, 2 * N, bias=False)
        self.steps = Linear(H * D, self.rates, bias=False)
        self.filter = nn.Parameter(torch.randn(H * D, W))
        self.filter_bias = nn.Parameter(torch.randn(H * D))
        self.A_log = nn.Parameter(torch.rand(*self.decays))
        self.D = nn.Parameter(torch.randn(self.rates))
        self.dt_bias = nn.Parameter(torch.randn(self.rates))
        self.past = nn.Parameter(torch.randn(B, H * D, W - 1))

    rates = H * D
    decays: tuple[int, ...] = (H * D, N)

    def forward(self, x: Tensor, cast: Cast = same) -> Tensor:
        x = self.project(x, cast).float()
        x = retrograd.causal_conv1d(cast(x), self.filter, self.filter_bias, initial_state=cast(self.past))
        assert x.dtype == BF16
        dt = self.steps(x, cast).float()
        B_, C = self.select(x, cast).float().chunk(2, -1)
        return self.scan(cast(x.float()), dt, cast(B_), cast(C))

    def scan(self, x: Tensor, dt: Tensor, B: Tensor, C: Tensor) -> Tensor:
        parameters: Any = {"D": self.D, "z": x, "dt_bias": self.dt_bias, "dt_softplus": True}
        return retrograd.selective_scan(x, dt, -self.A_log.exp(), B, C, **parameters)


class Dual(Scan):
    rates = H
    decays = (H,)

    def scan(self, x: Tensor, dt: Tensor, B: Tensor, C: Tensor) -> Tensor:
        parameters: Any = {"D": self.D, "dt_bias": self.dt_bias, "dt_softplus": True}
        return retrograd.ssd(x.unflatten(-1, (H, D)), dt, -self.A_log.exp(), B[:, :, None], C[:, :, None], **parameters)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "attention": Attention,
    "attention_qkvpacked": Packed,
    "selective_scan": Scan,
    "ssd": Dual,
}
Run = Callable[[nn.Module, Tensor], Tensor]


def model(name: str = "attention") -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return MODELS[name](), torch.randn(B, T, D)


def gradients(of: nn.Module, out: Tensor) -> dict[str, Tensor]:
    assert out.dtype == BF16
    of.zero_grad()
    out.float().square().sum().backward()
    return {name: parameter.grad for name, parameter in of.named_parameters() if parameter.grad is not None}


def assert_as_with_casts(name: str, run: Run, within: bool = False) -> None:
    """A model's result and gradients have the bits of explicit casts, and the dtype of its parameters."""
    ours, x = model(name)
    expected = ours(x, cast)
    exact = {name: gradient.clone() for name, gradient in gradients(ours, expected).items()}
    with autocast():
        out = run(ours, x)
        found = gradients(ours, out) if within else {}
    found = found or gradients(ours, out)
    assert torch.equal(out, expected)
    assert set(found) == set(exact)
    for each, parameter in ours.named_parameters():
        if each in found:
            assert found[each].dtype == parameter.dtype == torch.float32
            assert torch.equal(found[each], exact[each]), each


@pytest.mark.parametrize("within", [False, True], ids=["outside", "within"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_bits_of_explicit_casts(name: str, within: bool) -> None:
    assert_as_with_casts(name, lambda ours, x: ours(x), within)


def in_a_mode(ours: nn.Module, x: Tensor) -> Tensor:
    with PassThrough():
        out: Tensor = ours(x)
    return out


WAYS: dict[str, Run] = {
    "compiled": lambda ours, x: torch.compile(ours, fullgraph=True, backend="aot_eager")(x),
    "compiled, dynamic": lambda ours, x: torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=True)(x),
    "operator": in_a_mode,
    "checkpoint": lambda ours, x: checkpoint(ours, x, use_reentrant=False),
    "reentrant": lambda ours, x: checkpoint(ours, x.requires_grad_(), use_reentrant=True),
    "func": lambda ours, x: torch.func.functional_call(ours, dict(ours.named_parameters()), (x,)),
    "vmap": lambda ours, x: torch.vmap(ours)(x[None])[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_casts(way: str) -> None:
    torch._dynamo.reset()
    assert_as_with_casts("attention", WAYS[way])


@pytest.mark.parametrize("name", ["attention_qkvpacked", "ssd"])
def test_others_compile_too(name: str) -> None:
    torch._dynamo.reset()
    assert_as_with_casts(name, WAYS["compiled"])


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape)


STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    "causal_conv1d_update": lambda: {"x": drawn(B, D), "state": drawn(B, D, W - 1), "weight": drawn(D, W)},
    "selective_state_update": lambda: {
        "state": drawn(B, D, N),
        "x": drawn(B, D),
        "dt": drawn(B, D),
        "A": -drawn(D, N).exp(),
        "B": drawn(B, N),
        "C": drawn(B, N),
    },
    "ssd_update": lambda: {
        "state": drawn(B, H, D, N),
        "x": drawn(B, H, D),
        "dt": drawn(B, H),
        "A": -drawn(H).exp(),
        "B": drawn(B, 1, N),
        "C": drawn(B, 1, N),
    },
    "gated_delta_rule_update": lambda: {
        "state": drawn(B, H, D, N),
        "q": drawn(B, 1, N),
        "k": drawn(B, 1, N),
        "v": drawn(B, H, D),
        "g": -drawn(B, H).exp(),
        "beta": drawn(B, H),
    },
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_casts_what_a_sequence_does(name: str, compiled: bool) -> None:
    torch._dynamo.reset()
    function, arrays = getattr(retrograd, name), STEPS[name]()
    call = torch.compile(function, fullgraph=True, backend="aot_eager") if compiled else function
    names = CAST[name].split()
    expected = function(**{name: cast(array) if name in names else array for name, array in arrays.items()})
    with autocast():
        found = call(**arrays)
    assert [t.dtype for t in found] == [t.dtype for t in expected]
    assert all(map(torch.equal, found, expected))


def test_a_window_is_in_the_dtype_of_autocast() -> None:
    x, dt, A, matrix = drawn(B, T, H, D), drawn(B, T, H), -drawn(H).exp(), drawn(B, T, 1, N)
    with autocast():
        _, window = retrograd.ssd_prefill(x[:, 1:], dt[:, 1:], A, matrix[:, 1:], matrix[:, 1:], dt_softplus=True)
        y, after = retrograd.ssd_step(window, x[:, 0], dt[:, 0], A, matrix[:, 0], matrix[:, 0], dt_softplus=True)
    dtypes = {"x": BF16, "B": BF16, "dt": torch.float32, "state": torch.float32}
    assert y.dtype == BF16
    assert {name: getattr(window, name).dtype for name in dtypes} == dtypes
    assert {name: getattr(after, name).dtype for name in dtypes} == dtypes
    with autocast():  # a window of float32 is cast with the step
        wide = window._replace(**{name: getattr(window, name).float() for name in "xB"})
        again, _ = retrograd.ssd_step(wide, x[:, 0], dt[:, 0], A, matrix[:, 0], matrix[:, 0], dt_softplus=True)
    assert torch.equal(again, y)


def conv(x: Tensor, weight: Tensor | None = None) -> Tensor:
    return retrograd.causal_conv1d(x, torch.ones(D, W) if weight is None else weight)


def test_the_registered_operator_casts_before_autograd_records_it() -> None:
    x, weight = drawn(B, T, D).requires_grad_(), drawn(D, W).requires_grad_()
    operator = torch.ops.retrograd.causal_conv1d
    with autocast():
        y = operator(x, weight, None, None, None, None, False)[0]
    expected = conv(cast(x), weight)
    assert torch.equal(y, expected)
    grads = [torch.autograd.grad(t.sum(), (x, weight)) for t in (y, expected)]
    for found, exact in zip(grads[0], grads[1], strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(found, exact)
    with autocast():
        torch.library.opcheck(operator.default, (x, weight, None, None, None, None, False))


def test_transforms_cast() -> None:
    x, v = drawn(T, D), drawn(T, D)

    def loss(x: Tensor, cast: Cast = same) -> Tensor:
        return conv(cast(x[None])).float().square().sum()

    expected = torch.func.grad(loss)(x, cast)
    with autocast():
        found = torch.func.grad(loss)(x)
        per_sample = torch.vmap(torch.func.grad(loss))(x[None])
        tangent = torch.func.jvp(loss, (x,), (v,))[1]
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(loss(forward_ad.make_dual(x, v))).tangent
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert torch.equal(per_sample[0], expected)
    expected = torch.func.jvp(lambda x: loss(x, cast), (x,), (v,))[1]
    assert torch.equal(tangent, expected)
    assert torch.equal(dual, expected)


def test_a_second_derivative_casts() -> None:
    x = drawn(B, T, H, D).requires_grad_()

    def second(out: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(out.float().square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    with autocast():
        out = retrograd.attention(x, x, x)
    assert torch.equal(second(out), second(retrograd.attention(cast(x), cast(x), cast(x))))


def test_autocast_is_turned_off_within() -> None:
    x = drawn(B, T, D)
    with autocast(), autocast(enabled=False):
        assert conv(x).dtype == torch.float32
    with autocast():
        assert conv(x.to("meta"), torch.ones(D, W, device="meta")).dtype == torch.float32
    torch.set_autocast_enabled("cuda", True)  # of another type of device
    try:
        assert conv(x).dtype == torch.float32
    finally:
        torch.set_autocast_enabled("cuda", False)


def test_float64_and_complex_numbers_are_never_cast() -> None:
    x = drawn(B, T, D)
    with autocast():
        assert conv(x.double(), torch.ones(D, W).double()).dtype == torch.float64
        A, matrix = -torch.rand(D, N) + 0j, torch.randn(B, T, N, dtype=torch.complex64)
        assert retrograd.selective_scan(x, x, A, matrix, matrix).dtype == BF16
        with pytest.raises(TypeError, match="float64"):
            retrograd.attention(x[:, :, None], x[:, :, None].double(), x[:, :, None])


def test_a_matrix_that_is_constant_in_time_is_a_parameter() -> None:
    x, A, matrix = drawn(B, T, D), -drawn(D, N).exp(), drawn(D, N)
    with autocast():
        found = retrograd.selective_scan(x, x, A, matrix, matrix)
    assert torch.equal(found, retrograd.selective_scan(cast(x), x, A, matrix, matrix))


def test_another_16_bit_dtype_is_cast_in_parameters_too() -> None:
    x, weight = drawn(B, T, D).half(), drawn(D, W).half()
    with autocast():
        found = conv(x, weight)
    assert torch.equal(found, conv(cast(x), cast(weight)))


@pytest.mark.parametrize("enabled", [None, False])
def test_without_autocast_dtypes_still_have_to_fit(enabled: bool | None) -> None:
    q = drawn(B, T, H, D)
    with nullcontext() if enabled is None else autocast(enabled):
        for function, text in (
            (lambda: retrograd.attention(q, q, cast(q)), "attention: v has dtype bfloat16, expected float32"),
            (
                lambda: retrograd.causal_conv1d(q[:, 0], drawn(D, W), initial_state=cast(drawn(B, D, W - 1))),
                "causal_conv1d: initial_state has dtype bfloat16, expected float32",
            ),
        ):
            with pytest.raises(TypeError, match=re.escape(text)):
                function()


def test_a_wrong_call_is_refused_under_autocast_by_its_own_names() -> None:
    with autocast():
        with pytest.raises(TypeError, match=re.escape("causal_conv1d: x is list, expected a torch.Tensor")):
            conv([1])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="causal_conv1d: x has layout _mkldnn"):
            conv(drawn(B, T, D).to_mkldnn())
        with pytest.raises(TypeError, match=r"attention_qkvpacked: bias has dtype float64"):
            retrograd.attention_qkvpacked(drawn(B, T, 3, H, D), bias=drawn(1, 1, 1, 1).double())


def test_norms_and_linear_scans_stay_in_the_dtype_given() -> None:
    x = drawn(B, T, D)
    for each in (x, cast(x)):
        with autocast():
            assert retrograd.rms_norm(each).dtype == each.dtype
            assert retrograd.linear_scan(each, each).dtype == each.dtype
