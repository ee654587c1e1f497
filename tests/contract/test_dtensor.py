"""DTensors as arguments: computed on what each process has along independent axes, else refused by the argument's name.

`tests/distributed/test_dtensors.py` compares results and gradients of two processes with those of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import retrograd


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


Place = Callable[[Tensor, Any], DTensor]


@pytest.fixture
def place(mesh: DeviceMesh) -> Place:
    """A DTensor with a placement."""
    return lambda tensor, placement: distribute_tensor(tensor, mesh, [placement])


def partial(tensor: Tensor, place: Place) -> DTensor:
    """A DTensor of which each process has a term."""
    return DTensor.from_local(tensor, place(tensor, Replicate()).device_mesh, [Partial()])


def scan(place: Place, **changed: Any) -> Any:
    """A call of ssd whose rows are sharded, but for what `changed` says."""
    rows, whole = Shard(0), Replicate()
    given: dict[str, Any] = {
        "x": place(torch.randn(2, 8, 4, 4), rows),
        "dt": place(torch.rand(2, 8, 4), rows),
        "A": place(-torch.rand(4), whole),
        "B": place(torch.randn(2, 8, 2, 4), rows),
        "C": place(torch.randn(2, 8, 2, 4), rows),
    }
    given |= {name: value(place) if callable(value) else value for name, value in changed.items()}
    return retrograd.ssd(*given.values())


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"x": lambda place: place(torch.randn(2, 8, 4, 4), Shard(1))},
        ValueError,
        r"ssd: x.placements is Shard\(dim=1\), expected Replicate\(\), or Shard along batch or heads",
    ),
    (
        {"dt": lambda place: place(torch.rand(2, 8, 4), Replicate())},
        ValueError,
        r"ssd: dt.placements\[0\] is Replicate\(\), expected S\(0\), since x is S\(0\)",
    ),
    (
        {"A": lambda place: place(-torch.rand(4), Shard(0))},
        ValueError,
        r"ssd: A.placements\[0\] is Shard\(dim=0\), expected R, since x is S\(0\)",
    ),
    ({"A": -torch.rand(4)}, TypeError, "ssd: A is Tensor, expected a DTensor, as x"),
    (
        {
            "A": lambda place: DTensor.from_local(
                -torch.rand(4), place(torch.zeros(1), Replicate()).device_mesh, [Partial()]
            )
        },
        ValueError,
        r"ssd: A.placements is Partial\(sum\), expected no partial sum: redistribute it first",
    ),
    ({"dt": lambda place: place(torch.rand(2, 7, 4), Shard(0))}, ValueError, r"ssd: dt has shape \(2, 7, 4\)"),
]


@pytest.mark.parametrize(("changed", "kind", "message"), REFUSED)
def test_what_cannot_be_computed_apart_is_refused_by_name(
    place: Place, changed: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        scan(place, **changed)


def test_dropout_that_counts_rows_is_refused_where_they_are_sharded(place: Place) -> None:
    q, whole = place(torch.randn(2, 5, 2, 4), Shard(0)), place(torch.randn(2, 5, 2, 4), Replicate())
    seed = torch.tensor(3, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"attention: dropout_p is 0\.5, expected 0 where arguments are sharded"):
        retrograd.attention(q, q, q, dropout_p=0.5, dropout_seed=seed)
    assert retrograd.attention(whole, whole, whole, dropout_p=0.5, dropout_seed=seed).shape == (2, 5, 2, 4)


def test_results_and_gradients_are_dtensors_with_the_bits_of_tensors(place: Place) -> None:
    x, weight = torch.randn(2, 3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    rows, whole = place(x.detach(), Shard(0)).requires_grad_(), place(weight.detach(), Replicate()).requires_grad_()
    y = retrograd.rms_norm(rows, whole)
    assert isinstance(y, DTensor)
    assert y.placements == (Shard(0),)
    pull = torch.randn(2, 3, 8)
    y.backward(place(pull, Shard(0)))
    retrograd.rms_norm(x, weight).backward(pull)
    for found, expected, placement in ((rows, x, Shard(0)), (whole, weight, Partial())):
        assert isinstance(found.grad, DTensor)
        assert found.grad.placements == (placement,)
        assert expected.grad is not None
        assert torch.equal(found.grad.full_tensor(), expected.grad)


def test_a_call_on_dtensors_runs_where_the_rest_is_compiled(place: Place) -> None:
    x, weight = place(torch.randn(2, 3, 8), Shard(0)), place(torch.randn(8), Replicate())

    def doubled(x: Any, weight: Any) -> Any:
        return retrograd.rms_norm(x, weight) * 2

    compiled: Any = torch.compile(doubled, backend="aot_eager")
    assert torch.equal(compiled(x, weight).full_tensor(), doubled(x, weight).full_tensor())
