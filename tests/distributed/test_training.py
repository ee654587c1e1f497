"""A run ends in the same bits on every number of processes, and goes on on fewer when some are gone."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from processes import forked, needs_gpus
from train_runs import METRICS, bits, go_on, new_trainer, train, write_text
from training_process import work

from retrograd.train import Settings, preset
from retrograd.train.loop import learner_of
from retrograd.train.metrics import read

SLOTS, STEPS, SECONDS = 4, 20, 120


def processes(
    folder: Path, world: int, killed: tuple[int, int] | None = None, shard: bool = False
) -> list[tuple[int, str]]:
    """Train a run to its end in several processes; exit status and errors of each.

    Args:
        folder: of the run.
        world: their number.
        killed: the rank of one, and the step after which it is killed.
        shard: whether each has a part of the parameters.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    bodies, environments = [], []
    for rank in range(world):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        environments.append({name: str(value) for name, value in own.items()})
        bodies.append(partial(work, folder, shard, killed[1] if killed is not None and killed[0] == rank else None))
    return forked(bodies, environments, folder.parent, SECONDS)


def rows_of(folder: Path) -> list[dict[str, object]]:
    """The metrics of a run, without its speed."""
    return [dict(row) | {"tokens_per_s": 0} for row in read(folder / METRICS)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(new_trainer(folder, slots=SLOTS))
    return folder


def test_two_processes_and_four_with_shards_end_in_the_checkpoint_of_one(tmp_path: Path, whole: Path) -> None:
    for world, shard in ((2, False), (4, True)):
        folder = tmp_path / str(world)
        new_trainer(folder, slots=SLOTS)
        for status, errors in processes(folder, world, shard=shard):
            assert status == 0, errors
        assert bits(folder) == bits(whole)
        assert rows_of(folder) == rows_of(whole)


@pytest.mark.slow
def test_processes_that_divide_sequences_have_the_losses_of_one_and_the_bits_of_others(
    tmp_path: Path, whole: Path
) -> None:
    for world in (2, 4):  # as many divide a sequence, so that its parts are the same
        new_trainer(tmp_path / str(world), slots=SLOTS, context_parallel=2)
        for status, errors in processes(tmp_path / str(world), world):
            assert status == 0, errors
    assert bits(tmp_path / "4") == bits(tmp_path / "2")
    losses, expected = ([row["loss"] for row in rows_of(folder) if "loss" in row] for folder in (tmp_path / "2", whole))
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_when_a_process_is_killed_the_others_name_it_and_the_run_goes_on_on_fewer(
    tmp_path: Path, whole: Path, seed: int
) -> None:
    drawn = random.Random(seed)
    world = 4 if seed == 4 else 2  # with shards
    rank, step = drawn.randrange(world), drawn.randrange(1, STEPS)
    new_trainer(tmp_path / "killed", slots=SLOTS)
    ended = processes(tmp_path / "killed", world, (rank, step), shard=world == 4)
    assert ended.pop(rank)[0] == -signal.SIGKILL
    for status, errors in ended:
        assert status == 3, errors
        assert re.search(rf"rank {rank}(, which kept the store,)? is gone", errors)
    trainer = go_on(tmp_path / "killed")
    assert trainer.step in (step // 5 * 5, max(0, (step - 1) // 5 * 5))  # a checkpoint every 5 steps
    train(trainer)
    assert bits(tmp_path / "killed") == bits(whole)
    assert rows_of(tmp_path / "killed") == rows_of(whole)


@pytest.mark.slow
def test_the_command_trains_under_torchrun(tmp_path: Path, whole: Path) -> None:
    write_text(tmp_path / "text.txt")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    made = ["-m", "retrograd", "train", "--preset", "tiny", "--data", "text.txt", "--device", "cpu", "--name", "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run([*torchrun, *made], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("bits per byte; a bigram model") == 1  # of the first process alone
    settings = Settings.read(tmp_path / "runs" / "run")
    assert (settings.slots, settings.threads) == (4, 1)
    assert bits(tmp_path / "runs" / "run") == bits(whole)


@pytest.mark.gpu
def test_several_gpus_end_in_the_checkpoint_of_one(tmp_path: Path) -> None:
    needs_gpus(2)
    divided = ("--context-parallel", "2")
    bits_of = {
        "one": trained(tmp_path, 1),
        "two": trained(tmp_path, 2),
        "two, shards": trained(tmp_path, 2, "--shard"),
        "two, divided": trained(tmp_path, 2, *divided),
        "two, divided, shards": trained(tmp_path, 2, "--shard", *divided),
    }
    if torch.cuda.device_count() >= 4:
        bits_of["four, shards"] = trained(tmp_path, 4, "--shard")
        bits_of["four, divided"] = trained(tmp_path, 4, *divided)
    expected = {how: bits_of["two, divided" if "divided" in how else "one"] for how in bits_of}
    assert [how for how in bits_of if bits_of[how] != expected[how]] == []


def trained(folder: Path, world: int, *options: str) -> tuple[bytes, bytes]:
    """The checkpoint of a short run of the preset `gpu` on as many GPUs."""
    name = "-".join([str(world), *options])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    made = ["-m", "retrograd", "train", "--preset", "gpu", "--steps", "6", "--slots", "4", "--name", name, *options]
    run = subprocess.run([*torchrun, *made], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return bits(folder / "runs" / name)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slots": 3}, "slots is 3, expected a number that divides the batch of 4"),
        ({"slots": 2, "framework": "jax"}, "slots is 2, but they are of torch"),
        ({"context_parallel": 0}, "context_parallel is 0, expected 1 to 32, the steps of a sequence"),
        (
            {"context_parallel": 2, "compile": True},
            "context_parallel is 2, expected 1, since it is not for compile True",
        ),
        ({"context_parallel": 2, "framework": "jax"}, "expected 1, since it is not for the framework jax"),
    ],
)
def test_slots_and_parts_that_do_not_fit_are_refused(
    tmp_path: Path, changed: dict[str, int | str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        new_trainer(tmp_path / "run", **changed)


def test_what_is_for_several_processes_is_refused_where_it_does_not_fit(tmp_path: Path) -> None:
    new_trainer(tmp_path / "run", context_parallel=2)
    with pytest.raises(ValueError, match="shard is True, expected False, since it is not for compile True"):
        learner_of(Settings(name="tiny", preset=preset("tiny"), source="", compile=True), shard=True)
    with pytest.raises(ValueError, match="the number of processes is 1, expected a multiple of 2, which divide each"):
        go_on(tmp_path / "run")
