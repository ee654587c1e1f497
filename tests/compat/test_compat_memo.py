"""A tensor that tells packed texts apart is read once for all layers, and anew where it is refilled."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from retrograd.compat import memo
from retrograd.compat.causal_conv1d import causal_conv1d_fn

TIME = 21


def begins_at(step: int) -> Tensor:
    """(1, TIME) int32: a second text from this step on."""
    return (torch.arange(TIME) >= step).int()[None]


def by_numpy(tensor: Tensor, other: Tensor) -> None:
    tensor.numpy()[...] = other.numpy()


# What PyTorch counts, and what it does not.
COUNTED: dict[str, Callable[[Tensor, Tensor], object]] = {"copy_": Tensor.copy_}
UNCOUNTED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "data": lambda tensor, other: tensor.data.copy_(other),
    "numpy": by_numpy,
}


@pytest.mark.parametrize("refill", [*COUNTED, *UNCOUNTED])
@pytest.mark.parametrize("inference", [False, True])
def test_a_refilled_seq_idx_tells_the_new_texts_apart(refill: str, inference: bool, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(1, 8, TIME), torch.randn(8, 4)

    def convolved(seq_idx: Tensor) -> Tensor:
        y = causal_conv1d_fn(x, weight, seq_idx=seq_idx)
        assert isinstance(y, Tensor)
        return y

    with torch.inference_mode(inference):
        seq_idx = begins_at(8)
        before = convolved(seq_idx)
        (COUNTED | UNCOUNTED)[refill](seq_idx, begins_at(13))
        assert torch.equal(convolved(seq_idx), convolved(begins_at(13)))
        assert not torch.equal(convolved(seq_idx), before)


@pytest.mark.parametrize("refill", [*COUNTED, *UNCOUNTED])
def test_refilled_positions_tell_the_new_texts_apart(refill: str, seed: int) -> None:
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    from attention_models import drawn, model_of

    model, ids = model_of("GptOss", "retrograd"), drawn(seed)[:1]
    first, second = (torch.cat([torch.arange(n), torch.arange(ids.shape[1] - n)])[None] for n in (5, 7))
    expected = model(ids, position_ids=second).logits
    positions = first.clone()
    model(ids, position_ids=positions)
    (COUNTED | UNCOUNTED)[refill](positions, second)
    assert torch.equal(model(ids, position_ids=positions).logits, expected)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> tuple[memo.PerTensor[int], list[int]]:
    """A memo as on a GPU, and a list that grows where a value is computed."""
    monkeypatch.setattr(memo, "ASYNCHRONOUS", ("cpu",))
    return memo.PerTensor(), []


def test_where_the_host_would_wait_a_value_is_computed_once(kept: tuple[memo.PerTensor[int], list[int]]) -> None:
    per_tensor, computed = kept
    tensor = begins_at(8)

    def compute(tensor: Tensor) -> int:
        computed.append(int(tensor.sum()))
        return computed[-1]

    assert [per_tensor(tensor, compute) for _ in range(3)] == [13, 13, 13]
    tensor.copy_(begins_at(13))
    assert [per_tensor(tensor, compute) for _ in range(2)] == [8, 8]
    tensor.data = begins_at(20)
    assert per_tensor(tensor, compute) == 1
    assert computed == [13, 8, 1]
    del tensor
    gc.collect()
    assert not per_tensor._known


@pytest.mark.parametrize("refill", UNCOUNTED)
def test_there_a_refill_that_pytorch_does_not_count_is_an_error(
    refill: str, kept: tuple[memo.PerTensor[int], list[int]]
) -> None:
    per_tensor, _ = kept
    tensor = begins_at(8)
    per_tensor(tensor, lambda tensor: int(tensor.sum()))
    UNCOUNTED[refill](tensor, begins_at(13))
    with pytest.raises(RuntimeError, match=r"^a tensor that tells packed texts apart was refilled .*: pass"):
        per_tensor(tensor, lambda tensor: int(tensor.sum()))


STOPPED = """
import torch
from retrograd.compat.causal_conv1d import causal_conv1d_fn

x, weight = torch.randn(1, 8, 21, device="cuda"), torch.randn(8, 4, device="cuda")
seq_idx, other = ((torch.arange(21, device="cuda") >= step).int()[None] for step in (8, 13))
causal_conv1d_fn(x, weight, seq_idx=seq_idx)
causal_conv1d_fn(x, weight, seq_idx=seq_idx.copy_(other))
torch.cuda.synchronize()
print("counted", flush=True)
seq_idx.data.zero_()
causal_conv1d_fn(x, weight, seq_idx=seq_idx)
torch.cuda.synchronize()
print("not counted", flush=True)
"""


@pytest.mark.gpu
def test_on_a_gpu_it_stops_the_program() -> None:
    """In a process of its own, which can do no more on its GPU."""
    run = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True)
    assert (run.stdout.split("\n")[0], "not counted" in run.stdout) == ("counted", False), run.stderr
    assert run.returncode != 0
