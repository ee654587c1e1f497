"""attention_qkvpacked: on every way into PyTorch, the bits of attention on the three views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from retrograd import attention, attention_qkvpacked
from retrograd.core.arch import SUPPORTED
from retrograd.core.build import signature
from retrograd.core.program import Layout
from retrograd.core.spec import Param
from retrograd.core.spec import options as options_of
from retrograd.ops.attention.op import OP
from retrograd.ops.attention.packed import ATTENTION_QKVPACKED

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ON = pytest.mark.parametrize("device", DEVICES)
B, T, H, D = 2, 70, 2, 16
Function = Callable[..., Any]


def by_views(qkv: Tensor, *, cu_seqlens: Tensor | None = None, **how: Any) -> Any:
    return attention(*qkv.unbind(2), cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, **how)


def drawn(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return values.to(device, dtype)


def loss_of(results: Any) -> Tensor:
    tensors = results if isinstance(results, tuple) else (results,)
    total = sum((t.float() * drawn(*t.shape, device=t.device.type)).sum() for t in tensors)
    assert isinstance(total, Tensor)
    return total


def same(found: Any, expected: Any) -> bool:
    """Whether two tensors, or two sequences of tensors and None, are equal."""
    if found is None or isinstance(found, Tensor):
        return found is expected if found is None else torch.equal(found, expected)
    return len(found) == len(expected) and all(map(same, found, expected))


def both(ask: Callable[[Function], Any]) -> None:
    """Ask the same of the packed function and of attention."""
    assert same(ask(attention_qkvpacked), ask(by_views))


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True, "window": [20, 0], "softcap": 3.0, "scale": 0.3},
    "lse": {"return_lse": True},
    "parameters": {
        "bias": drawn(1, H, T, T),
        "alibi_slopes": drawn(H),
        "sinks": drawn(H),
        "return_lse": True,
    },
    "dropout": {"dropout_p": 0.3, "dropout_seed": 5},
    "fused": {"backward": "fused"},
}


@ON
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("way", WAYS)
def test_results_and_gradients_are_those_of_attention(way: str, dtype: torch.dtype, device: str) -> None:
    def ask(function: Function) -> Any:
        how = {name: leaf(t.to(device)) if isinstance(t, Tensor) else t for name, t in WAYS[way].items()}
        qkv = leaf(drawn(B, T, 3, H, D, device=device, dtype=dtype))
        results = function(qkv, **how)
        given = [qkv, *(t for t in how.values() if isinstance(t, Tensor))]
        return [*(results if isinstance(results, tuple) else [results]), *torch.autograd.grad(loss_of(results), given)]

    both(ask)


@ON
def test_packed_sequences_may_leave_gaps(device: str) -> None:
    bounds = torch.tensor([5, 0, 30, 0, 30, 0, 65], dtype=torch.int32, device=device)[::2]

    def ask(function: Function) -> Any:
        qkv = leaf(drawn(1, T, 3, H, D, device=device))
        out = function(qkv, cu_seqlens=bounds, causal=True)
        return [out, *torch.autograd.grad(loss_of(out), [qkv])]

    both(ask)


@ON
def test_ids_of_steps(device: str) -> None:
    ids = torch.arange(B * T, dtype=torch.int32, device=device).reshape(B, T) // 30 - 1

    def ask(function: Function) -> Any:
        qkv = leaf(drawn(B, T, 3, H, D, device=device))
        out = function(qkv, segment_ids=ids, causal=True)
        return [out, *torch.autograd.grad(loss_of(out), [qkv])]

    both(ask)


@ON
@pytest.mark.parametrize("shape", [(0, T, 3, H, D), (B, 0, 3, H, D), (B, T, 3, H, 3), (1, 5, 3, 1, 1)])
def test_empty_and_odd_shapes(shape: tuple[int, ...], device: str) -> None:
    def ask(function: Function) -> Any:
        qkv = leaf(drawn(*shape, device=device, dtype=torch.float16))
        out = function(qkv)
        return [out, *torch.autograd.grad(loss_of(out), [qkv])]

    both(ask)


@ON
@pytest.mark.parametrize(
    ("needs", "asked"),
    [((True, False), [0]), ((False, True), [1]), ((True, True), [0]), ((True, True), [1]), ((True, True), [0, 1])],
)
def test_only_the_gradients_that_are_needed(needs: tuple[bool, bool], asked: Sequence[int], device: str) -> None:
    def ask(function: Function) -> Any:
        qkv, sinks = drawn(B, T, 3, H, D, device=device), drawn(H, device=device)
        given = [t.requires_grad_(need) for t, need in zip((qkv, sinks), needs, strict=True)]
        out = function(qkv, sinks=sinks)
        return torch.autograd.grad(loss_of(out), [given[i] for i in asked])

    both(ask)


@ON
def test_a_view_of_a_projection_and_other_layouts(device: str) -> None:
    x, weight = drawn(B, T, 24, device=device), drawn(24, 3 * H * D, device=device)
    views: list[Callable[[Tensor], Tensor]] = [
        lambda t: t.view(B, T, 3, H, D),
        lambda t: t.view(B, T, H, 3, D).transpose(2, 3),
        lambda t: t.view(B, T, 3, H, D).flip(1)[:, ::2],
        lambda t: t.view(B, T, 3, H, D)[:1].expand(B, T, 3, H, D),
    ]
    for view in views:

        def ask(function: Function, view: Callable[[Tensor], Tensor] = view) -> Any:
            own = leaf(weight)
            out = function(view(x @ own), causal=True)
            return [out, *torch.autograd.grad(loss_of(out), [own])]

        both(ask)


@ON
def test_gradients_add_up_in_a_leaf(device: str) -> None:
    qkv = leaf(drawn(B, T, 3, H, D, device=device))
    for _ in range(2):
        loss_of(attention_qkvpacked(qkv)).backward()
    once = leaf(qkv)
    loss_of(attention_qkvpacked(once)).backward()
    assert qkv.grad is not None
    assert once.grad is not None
    assert qkv.grad.equal(2 * once.grad)
    assert once.grad.is_contiguous()


@ON
def test_a_change_in_place_is_noticed(device: str) -> None:
    qkv = leaf(drawn(B, T, 3, H, D, device=device))
    out = attention_qkvpacked(qkv)
    with torch.no_grad():
        qkv[:, :, 1] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss_of(out).backward()


@ON
def test_saved_tensors_may_be_moved_or_computed_again(device: str) -> None:
    def ask(function: Function) -> Any:
        found = []
        with save_on_cpu():
            moved = leaf(drawn(B, T, 3, H, D, device=device))
            loss_of(function(moved)).backward()
            found.append(moved.grad)
        for reentrant in (True, False):
            qkv = leaf(moved)
            again: Any = checkpoint(function, qkv, use_reentrant=reentrant)
            loss_of(again).backward()
            found.append(qkv.grad)
        return found

    both(ask)


@ON
def test_second_derivatives(device: str) -> None:
    def ask(function: Function) -> Any:
        qkv = leaf(drawn(1, 9, 3, H, 4, device=device))
        out, lse = function(qkv, causal=True, return_lse=True)
        (first,) = torch.autograd.grad(loss_of((out, lse)), [qkv], create_graph=True)
        return [first, *torch.autograd.grad((first * first).sum(), [qkv])]

    both(ask)


@ON
def test_gradients_in_batches(device: str) -> None:
    def ask(function: Function) -> Any:
        qkv = leaf(drawn(1, 9, 3, H, 4, device=device))
        out = function(qkv)
        incoming = drawn(3, *out.shape, device=device)
        return torch.autograd.grad(out, [qkv], incoming, is_grads_batched=True)

    both(ask)


@ON
def test_transforms(device: str) -> None:
    qkv = drawn(3, 1, 9, 3, H, 4, device=device)

    def ask(function: Function) -> Any:
        gradient = torch.func.grad(lambda t: loss_of(function(t)))
        mapped = leaf(qkv)
        out = torch.vmap(function)(mapped)
        tangents = torch.func.jvp(function, (qkv[0],), (qkv[1],))
        return [out, *torch.autograd.grad(loss_of(out), [mapped]), gradient(qkv[0]), *tangents]

    both(ask)


@ON
def test_autocast(device: str) -> None:
    def ask(function: Function) -> Any:
        qkv = leaf(drawn(B, T, 3, H, D, device=device))
        with torch.autocast(device, dtype=torch.bfloat16):
            out = function(qkv)
            return [out, *torch.autograd.grad(loss_of(out), [qkv])]

    both(ask)


@ON
def test_modes_see_the_call(device: str) -> None:
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    for mode in (Names, Functions):

        def ask(function: Function, mode: type[Any] = mode) -> Any:
            qkv = leaf(drawn(B, T, 3, H, D, device=device))
            with mode():
                out = function(qkv)
                return [out, *torch.autograd.grad(loss_of(out), [qkv])]

        seen: list[str] = []
        both(ask)
        assert mode is Functions or {"retrograd.attention.default", "retrograd.attention_backward.default"} <= set(seen)


@ON
def test_a_compiled_graph(device: str) -> None:
    def ask(function: Function) -> Any:
        qkv = leaf(drawn(B, T, 3, H, D, device=device))

        def doubled(t: Tensor) -> Tensor:
            out: Tensor = function(t, causal=True)
            return out * 2

        compiled: Any = torch.compile(doubled, backend="aot_eager", fullgraph=True)
        out = compiled(qkv)
        return [out, *torch.autograd.grad(loss_of(out), [qkv])]

    both(ask)


@pytest.mark.parametrize(("columns", "backward"), [(64, "split"), (20, "split"), (64, "fused")])
@pytest.mark.parametrize("bounds", [None, Param((3,), "int32")], ids=["batch", "packed"])
@pytest.mark.parametrize("name", ["sm_80", "sm_90"])
def test_the_binaries_are_those_of_three_gradients(
    name: str, bounds: Param | None, columns: int, backward: str
) -> None:
    arch, array = SUPPORTED[name], Param((1, T, 2, columns), "bfloat16")
    arguments = {**dict.fromkeys(OP.arguments), "q": array, "k": array, "v": array}
    options = {name: option.default for name, option in options_of(OP.call).items()} | {"backward": backward}
    spec = OP.spec({**arguments, "cu_seqlens_q": bounds, "cu_seqlens_k": bounds}, options)
    read = dict.fromkeys(ATTENTION_QKVPACKED.arguments, Layout(torch.empty(1, T, 3, 2, columns)[:, :, 0].stride()))
    wanted = frozenset(ATTENTION_QKVPACKED.arguments)
    apart, stacked = (OP.backward(spec, wanted, stack).program(read, arch) for stack in (None, ATTENTION_QKVPACKED))
    assert apart is not None
    assert stacked is not None
    assert [array.name for array in stacked.returned] == ["dqkv"]
    for one, other in zip(apart.launches, stacked.launches, strict=True):
        assert signature(one, apart.arrays) == signature(other, stacked.arrays)


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
def test_kernels_write_the_gradient_into_one_array_without_a_copy(packed: bool) -> None:
    shape = (1, 4096, 3, 16, 128) if packed else (2, 2048, 3, 16, 128)
    bounds = torch.tensor([0, 1000, 4000], dtype=torch.int32, device="cuda") if packed else None
    qkv = leaf(drawn(*shape, device="cuda", dtype=torch.bfloat16))

    def run() -> int:
        """The bytes that the backward pass takes at its peak."""
        out: Any = attention_qkvpacked(qkv, cu_seqlens=bounds, causal=True, backward="split")
        dout = torch.ones_like(out)
        qkv.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out.backward(dout)
        return torch.cuda.max_memory_allocated() - before

    run()
    taken, one = run(), qkv.numel() * qkv.element_size()
    # Beside the gradient, delta and base: two float32 numbers for each query and head, and room for rounding up.
    assert taken <= one + 2 * 4 * qkv.numel() // (3 * 128) + 2**21
    assert qkv.grad is not None
    assert qkv.grad.is_contiguous()
    assert qkv.grad.untyped_storage().nbytes() == one
    views = [leaf(t) for t in qkv.unbind(2)]
    out = attention(*views, cu_seqlens_q=bounds, cu_seqlens_k=bounds, causal=True, backward="split")
    assert qkv.grad.equal(torch.stack(torch.autograd.grad(out, views, torch.ones_like(out)), 2))
