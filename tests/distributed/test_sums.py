"""Gradients have the same bits on every number of processes, and are those of one process."""

from __future__ import annotations

import math
import random
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from bodies import by_slots, loss_of, model_and_batch
from processes import needs_gpus, run, run_each

from retrograd.distributed import Slots, SlotSum, Tree, order_fsdp, tree_sum
from retrograd.distributed.exchange import sum_of

WORLDS = (2, 4)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two models' gradients have the same bits, signs of zeros included."""
    assert one.keys() == other.keys()
    return all(torch.equal(one[name].view(torch.int32), other[name].view(torch.int32)) for name in one)


@pytest.mark.parametrize("world", WORLDS)
def test_gradients_have_the_bits_of_one_process(world: int, tmp_path: Path) -> None:
    alone, in_float64 = by_slots(0, 1, "cpu"), by_slots(0, 1, "cpu", torch.float64)
    found = run("bodies.all_ways", world, tmp_path)
    check(found, alone)
    assert all(same(rank["float64"], in_float64) for rank in found)
    assert not same(alone, in_float64)  # the order and the dtype of the sum can be seen in the bits


@pytest.mark.parametrize("world", range(1, 18))
def test_parts_of_all_ranks_are_added_by_the_tree(world: int) -> None:
    received, out = torch.randn(world * 37, generator=torch.Generator().manual_seed(world)), torch.empty(37)
    expected = tree_sum(received.view(world, -1).unbind(), torch.add)
    assert torch.equal(sum_of(received.clone(), world), expected)
    assert sum_of(received.clone(), world, out) is out
    assert torch.equal(out, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("world", WORLDS)
def test_gradients_of_several_gpus_have_the_bits_of_one(world: int, tmp_path: Path) -> None:
    needs_gpus(world)
    found = run("bodies.all_ways", world, tmp_path, "cuda")
    assert all(same(rank["alone"], found[0]["alone"]) for rank in found)
    check(found, found[0]["alone"])


@pytest.mark.gpu
def test_gradients_of_processes_that_share_a_gpu_have_the_bits_of_one(tmp_path: Path) -> None:
    alone, *several = (
        run_each(["bodies.by_slots"], world, tmp_path / str(world), "cuda", shared=True)[0] for world in (1, *WORLDS)
    )
    for found in several:
        assert all(same(rank, alone[0]) for rank in found)


def check(found: list[dict[str, Any]], alone: dict[str, torch.Tensor]) -> None:
    """The gradients of every way on every rank, and the plain sums."""
    for rank in found:
        assert same(rank["slots"], alone)
        assert same(rank["fsdp"], alone)
        assert same(rank["ddp"], rank["ranks"])
        assert torch.equal(rank["sum"], found[0]["sum"])
    terms = [rank["terms"] for rank in found]
    expected = tree_sum([term.clone() for term in terms], torch.Tensor.add_)
    assert torch.equal(torch.cat([rank["part"] for rank in found]), expected)
    assert torch.equal(found[0]["sum"], expected[:7])


def test_the_sum_over_slots_is_the_gradient_of_the_batch() -> None:
    model, batch = model_and_batch("cpu")
    torch.stack([loss_of(model, tokens) for tokens in batch]).sum().backward()
    for name, found in by_slots(0, 1, "cpu").items():
        torch.testing.assert_close(found, model.get_parameter(name).grad)


def test_processes_that_do_not_fit_each_other_say_so_in_every_process(tmp_path: Path) -> None:
    first, second = run("bodies.refusals", 2, tmp_path)
    assert (
        first[:3]
        == second[:3]
        == [
            "SlotSum: parameter 0 is (3, 3) torch.float32 on rank 1, expected (2, 3) torch.float32 as on rank 0",
            "SlotSum: parameter 0 is (2,) torch.float32 on rank 1, expected (2, 3) torch.float32 as on rank 0",
            "SlotSum: slots.count is 4 on rank 1, expected 2 as on rank 0",
        ]
    )
    assert first[3] == "SlotSum: slots is of rank 1 of 2, expected rank 0 of 2 processes"


@pytest.mark.parametrize("count", range(1, 14))
def test_a_tree_over_the_sums_of_runs_is_the_tree_over_all(count: int) -> None:
    drawn = random.Random(count)
    terms = [drawn.gauss(0, 1) for _ in range(count)]

    def add(a: float, b: float) -> float:
        return a + b

    def split(terms: list[float]) -> float:
        if len(terms) == 1:
            return terms[0]
        half = 2 ** math.ceil(math.log2(len(terms)) - 1)
        return split(terms[:half]) + split(terms[half:])

    assert tree_sum(terms, add) == split(terms)
    for run_of in (1, 2, 4):
        if count % run_of == 0:
            runs = [tree_sum(terms[i : i + run_of], add) for i in range(0, count, run_of)]
            assert tree_sum(runs, add) == tree_sum(terms, add)


def test_a_tree_keeps_few_partial_sums() -> None:
    tree: Tree[int] = Tree(lambda a, b: a + b)
    for number in range(1, 100):
        tree.append(1)
        assert len(tree._nodes) == number.bit_count()
    assert tree.total() == 99


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "count is 0, expected at least 1"),
        ((8, 3), "world is 3, expected one of 1, 2, 4, 8 for 8 slots"),
        ((12, 2), "world is 2, expected one of 3, 6, 12 for 12 slots"),
        ((8, 16), "world is 16, expected one of 1, 2, 4, 8"),
        ((8, 2, 2), "rank is 2, expected 0 to 1"),
    ],
)
def test_slots_that_cannot_be_divided_are_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Slots(*arguments)


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_every_slot_belongs_to_one_process(world: int) -> None:
    own: list[int] = reduce(lambda before, rank: [*before, *Slots(8, world, rank).own], range(world), [])
    assert own == list(range(8))


def test_a_slot_too_many_or_too_few_is_refused() -> None:
    model = torch.nn.Linear(2, 1)
    total = SlotSum(model.parameters(), Slots(2))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"take was called \d times, expected 2"):
            total.finish()
        total.take()
    with pytest.raises(ValueError, match="take was called 3 times, expected 2"):
        total.take()


def test_order_fsdp_refuses_what_it_cannot_order() -> None:
    with pytest.raises(ValueError, match="model has no module that fully_shard has sharded"):
        order_fsdp(torch.nn.Linear(2, 1), Slots(2, 2, 0))
