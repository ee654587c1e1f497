"""Ops whose sequences are divided over processes, and the records that say how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import needs_gpus, run, run_each

from retrograd.distributed import Layout

# How often each call measures a reach, and whether it is computed in turn: the second and the fourth take the reach of
# the first, which is too short for the third.
EARLY = [["gradients_in_turn", "in_turn"]] * 3 + [["gradients_in_turn"]]
REMEMBERED = [(1, False), (0, False), (1, True), (0, False)]


@pytest.mark.slow
def test_four_processes_have_the_results_of_one(tmp_path: Path) -> None:
    names = ("differences", "forgotten", "borders_anywhere")
    different, forgotten, anywhere = run_each([f"contexts.{name}" for name in names], 4, tmp_path)
    assert different == [[]] * 4
    assert forgotten == [([], [])] * 4
    assert anywhere == [[]] * 4  # within rounding


def test_two_processes_have_the_results_of_one(tmp_path: Path) -> None:
    names = ("differences", "forgotten", "forgotten_too_early", "recomputed", "remembered", "kept")
    found = run_each([f"contexts.{name}" for name in names], 2, tmp_path)
    different, forgotten, early, recomputed, remembered, kept = found
    assert different == [[]] * 2  # to the bit, for results and gradients of steps
    assert forgotten == [([], [])] * 2  # so have scans that are computed at once, since states decay soon
    assert kept == [[]] * 2
    assert remembered == [([], REMEMBERED)] * 2
    assert recomputed == [[]] * 2  # to the bit, under activation checkpointing
    assert early == [([], EARLY)] * 2  # a state that was not forgotten is found out, and the scan computed again


def test_what_does_not_fit_is_refused_in_every_process(tmp_path: Path) -> None:
    for messages, steps in zip(run("contexts.refusals", 2, tmp_path), (256, 144), strict=True):
        expected = [
            "ContextParallel: starts is (0, 256, 400) on rank 1, expected (0, 128, 400) as on rank 0",
            "ContextParallel: layout.rank is another process's on rank 1, expected its process's as on rank 0",
            "ContextParallel: layout.world is 3, expected 2, the processes of the group",
            "ContextParallel: order is 'any', expected 'global' or 'ranks'",
            "ContextParallel: layout.starts is (0, 257, 400), expected borders at multiples of 256 steps of their "
            "sequences, or order='ranks'",
            f"causal_conv1d: x has shape (1, {steps - 1}, 8), expected {steps} steps, those of this process",
            "causal_conv1d: x is (1, another time, 8) torch.float32 on rank 1, expected (1, time, 8) "
            "torch.float32 as on rank 0",
            "linear_scan: a is (2, time, 8) torch.float32 on rank 1, expected (1, time, 8) torch.float32 as on rank 0",
            "linear_scan: reverse is True on rank 1, expected False as on rank 0",
            "causal_conv1d: cu_seqlens is 'an array', expected None: the context's layout has the boundaries",
            f"causal_conv1d: x has shape (2, {steps}, 8), expected a batch of 1, since the context's layout has packed "
            "sequences",
            "linear_scan: initial_state has shape (2, 8), expected 1 sequences, as the context's layout has",
            "attention: k's number of heads is 3, expected a multiple of 2, or a context whose order is 'ranks'",
            f"attention: k has shape (1, {steps - 1}, 3, 16), expected {steps} steps, as q: keys are those of the "
            "queries",
            "attention: bias is 'given', expected None beside a context",
            *["linear_scan: context is 'given', expected None in forward mode and under transforms of torch.func"] * 2,
            f"ContextParallel: x has shape (1, {steps - 1}, 8), expected 400 steps along dim 1",
            f"ContextParallel: x has shape (1, {steps - 1}, 8), expected {steps} steps along dim 1",
        ]
        assert messages == expected


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [True, False], ids=["on one GPU", "a GPU each"])
@pytest.mark.parametrize("world", [2, 4])
def test_processes_with_kernels_have_the_bits_of_one(world: int, shared: bool, tmp_path: Path) -> None:
    needs_gpus(1 if shared else world)
    expected: dict[str, Any] = {
        "differences": [],
        "forgotten": ([], []),
        "forgotten_too_early": ([], EARLY),
        "remembered": ([], REMEMBERED),
        "summed": [],
    }
    found = run_each([f"contexts.{name}" for name in expected], world, tmp_path, "cuda", shared)
    assert found == [[each] * world for each in expected.values()]


def steps_of(layout: Layout) -> list[tuple[int, int]]:
    """(sequence, position) of all steps, as the ranks' layouts have them together."""
    found = []
    for rank in range(layout.world):
        own = Layout(layout.starts, rank, layout.bounds)
        sequence: dict[int, int] = {}
        for piece in own.pieces:
            sequence |= dict.fromkeys(range(piece.begin, piece.end), piece.sequence)
        found += [(sequence.get(step, -1), position) for step, position in enumerate(own.positions)]
    return found


@pytest.mark.parametrize("bounds", [None, (0, 300), (3, 10, 10, 150, 285, 285), (0, 0, 299, 300), (70, 70)])
@pytest.mark.parametrize("starts", [(0, 300), (0, 64, 128, 300), (0, 0, 10, 10, 300), (0, 3, 4, 300, 300)])
def test_the_pieces_of_all_ranks_are_the_sequences(starts: tuple[int, ...], bounds: tuple[int, ...] | None) -> None:
    layout = Layout(starts, 0, bounds)
    assert steps_of(layout) == steps_of(Layout((0, 300), 0, bounds))
    pieces = [piece for rank in range(layout.world) for piece in layout.pieces_of(rank)]
    for kind in ("first", "last"):  # each sequence begins and ends once
        numbers = [piece.sequence for piece in pieces if getattr(piece, kind)]
        assert numbers == list(range(len(layout.sequences) - 1))
    for rank in range(1, layout.world):
        after, before = layout.pieces_of(rank), layout.pieces_of(rank - 1)
        assert layout.crosses(rank) == bool(after and not after[0].first)
        assert layout.crosses(rank) == bool(before and not before[-1].last)


@pytest.mark.parametrize("bounds", [None, (3, 10, 10, 150, 285, 285), (0, 1, 2, 3, 3900), (0, 100, 4000)])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_even_layouts_keep_bits_and_are_about_equal(world: int, bounds: tuple[int, ...] | None) -> None:
    layout = Layout.even(4000, world, world - 1, bounds)
    assert layout.exact
    assert layout.time == sum(layout.sizes) == 4000
    assert all(abs(size - 4000 / world) <= 256 for size in layout.sizes)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (((0,), 0), r"Layout: starts is \(0,\)"),
        (((1, 2), 0), r"Layout: starts is \(1, 2\)"),
        (((0, 5, 3), 0), r"Layout: starts is \(0, 5, 3\)"),
        (((0, 5), 1), r"Layout: rank is 1, expected 0 to 0, since starts is of 1 ranks"),
        (((0, 5), 0, (0, 6)), r"Layout: bounds is \(0, 6\), expected .* of 0 to 5"),
        (((0, 5), 0, (3, 2)), r"Layout: bounds is \(3, 2\)"),
    ],
)
def test_a_layout_names_what_does_not_fit(arguments: tuple[object, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Layout(*arguments)  # type: ignore[arg-type]
