"""causal_conv1d at its edge cases and compared with PyTorch's convolution."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu

import retrograd.jax
from retrograd import causal_conv1d, causal_conv1d_update


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_it_agrees_with_pytorch(seed: int) -> None:
    x, weight, bias = drawn(seed, (2, 13, 6), (6, 4), (6,))
    expected = conv1d(x.transpose(1, 2), weight[:, None], bias, padding=3, groups=6)[..., :13].transpose(1, 2)
    torch.testing.assert_close(causal_conv1d(x, weight, bias), expected)
    torch.testing.assert_close(causal_conv1d(x, weight, bias, activation="silu"), silu(expected))


def test_an_input_reaches_no_earlier_step_and_none_beyond_the_filter(seed: int) -> None:
    x, weight = drawn(seed, (1, 12, 3), (3, 4))
    other = x.clone()
    other[:, 5] += 1
    changed = (causal_conv1d(x, weight) != causal_conv1d(other, weight)).any(-1)[0]
    assert changed.nonzero().flatten().tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize("cut", [0, 1, 2, 9, 11])
def test_a_sequence_goes_on_from_its_state_to_the_bit(width: int, cut: int, seed: int) -> None:
    x, weight, bias, initial = drawn(seed, (2, 11, 6), (6, width), (6,), (2, 6, width - 1))
    whole, last = causal_conv1d(x, weight, bias, initial_state=initial, activation="silu", return_final_state=True)
    head, state = causal_conv1d(
        x[:, :cut], weight, bias, initial_state=initial, activation="silu", return_final_state=True
    )
    tail, end = causal_conv1d(x[:, cut:], weight, bias, initial_state=state, activation="silu", return_final_state=True)
    assert torch.equal(torch.cat([head, tail], 1), whole)
    assert torch.equal(end, last)


def test_a_state_is_the_last_inputs_oldest_first(seed: int) -> None:
    x, weight = drawn(seed, (2, 5, 3), (3, 4))
    assert torch.equal(causal_conv1d(x, weight, return_final_state=True)[1], x[:, 2:].transpose(1, 2))
    short = causal_conv1d(x[:, :1], weight, return_final_state=True)[1]
    assert torch.equal(short[..., 2], x[:, 0])
    assert not short[..., :2].any()


def test_steps_of_generation_are_those_of_the_whole_to_the_bit(seed: int) -> None:
    x, weight, bias, state = drawn(seed, (2, 6, 5), (5, 4), (5,), (2, 5, 3))
    whole, last = causal_conv1d(x, weight, bias, initial_state=state, activation="silu", return_final_state=True)
    for t in range(4):
        before = state.clone()
        y, new = causal_conv1d_update(x[:, t], state, weight, bias, activation="silu")
        assert torch.equal(y, whole[:, t])
        assert torch.equal(state, before), "the state is changed in place"
        state = new
    y, state = causal_conv1d_update(x[:, 4:], state, weight, bias, activation="silu")
    assert torch.equal(y, whole[:, 4:])
    assert torch.equal(state, last)


def test_a_step_of_generation_compiles(seed: int) -> None:
    x, weight, state = drawn(seed, (2, 5), (5, 4), (2, 5, 3))
    compiled = torch.compile(causal_conv1d_update, fullgraph=True, backend="eager")
    for found, expected in zip(compiled(x, state, weight), causal_conv1d_update(x, state, weight), strict=True):
        assert torch.equal(found, expected)
    in_jax = jax.jit(retrograd.jax.causal_conv1d_update)(*map(jnp.asarray, (x.numpy(), state.numpy(), weight.numpy())))
    for got, wanted in zip(in_jax, causal_conv1d_update(x, state, weight), strict=True):
        np.testing.assert_allclose(np.asarray(got), wanted.numpy(), rtol=1e-5, atol=1e-5)


def test_packed_sequences_are_what_they_are_alone_to_the_bit(seed: int) -> None:
    lengths, D = (3, 0, 1, 9, 2), 5
    x, weight, bias, initial, dy, dfinal = drawn(seed, (1, 15, D), (D, 4), (D,), (5, D, 3), (1, 15, D), (5, D, 3))
    bounds = torch.tensor([0, 3, 3, 4, 13, 15], dtype=torch.int32)

    def run(x: Tensor, initial: Tensor, dy: Tensor, dfinal: Tensor, cu_seqlens: Tensor | None) -> list[Tensor]:
        x, initial = x.detach().requires_grad_(), initial.detach().requires_grad_()
        y, final = causal_conv1d(
            x, weight, bias, activation="silu", initial_state=initial, cu_seqlens=cu_seqlens, return_final_state=True
        )
        return [y, final, *torch.autograd.grad((y, final), (x, initial), (dy, dfinal))]

    y, final, dx, dinitial = run(x, initial, dy, dfinal, bounds)
    for i, length in enumerate(lengths):
        a = int(bounds[i])
        b = a + length
        alone = run(x[:, a:b], initial[i : i + 1], dy[:, a:b], dfinal[i : i + 1], None)
        expected = (y[:, a:b], final[i : i + 1], dx[:, a:b], dinitial[i : i + 1])
        for found, wanted in zip(alone, expected, strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("bounds", [(2, 5), (2, 5, 9), (0,), (12, 12)])
def test_steps_outside_of_every_sequence_give_zeros(bounds: tuple[int, ...], seed: int) -> None:
    x, weight = drawn(seed, (1, 12, 4), (4, 4))
    x.requires_grad_()
    weight.requires_grad_()
    y = causal_conv1d(x, weight, torch.ones(4), activation="silu", cu_seqlens=torch.tensor(bounds, dtype=torch.int32))
    y.sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    outside = [t for t in range(12) if not bounds[0] <= t < bounds[-1]]
    assert not y[:, outside].any()
    assert not x.grad[:, outside].any()
    assert y[:, [t for t in range(12) if t not in outside]].all()
    assert torch.isfinite(weight.grad).all()


def test_jax_and_pytorch_agree_on_packed_gradients(seed: int) -> None:
    x, weight, initial = drawn(seed, (1, 9, 4), (4, 3), (3, 4, 2))
    bounds = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    leaves = [t.requires_grad_() for t in (x, weight, initial)]
    y = causal_conv1d(x, weight, initial_state=initial, cu_seqlens=bounds, activation="silu")
    (y * y).sum().backward()

    def loss(x: jax.Array, weight: jax.Array, initial: jax.Array) -> jax.Array:
        y = retrograd.jax.causal_conv1d(
            x, weight, initial_state=initial, cu_seqlens=jnp.asarray(bounds.numpy()), activation="silu"
        )
        assert isinstance(y, jax.Array)
        return (y * y).sum()

    gradients = jax.grad(loss, argnums=(0, 1, 2))(*(jnp.asarray(t.detach().numpy()) for t in leaves))
    for found, leaf in zip(gradients, leaves, strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(np.asarray(found), leaf.grad.numpy(), rtol=1e-4, atol=1e-5)
