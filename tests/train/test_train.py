"""Training: the same bits in every run, after any stop or kill; data, schedule and the bigram model."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_runs import METRICS, bits, go_on, new_trainer, train, write_text

from retrograd.nn import LanguageModel, checksums, load
from retrograd.train import PRESETS, Preset, Settings, Windows, preset, start, stdlib, text_at
from retrograd.train import checkpoint as checkpoints
from retrograd.train.bigram import Bigram
from retrograd.train.data import HELD_OUT, SEPARATOR, TRAINING, write
from retrograd.train.loop import lr_factor
from retrograd.train.metrics import read
from retrograd.train.torch_learner import adamw

STEPS = PRESETS["tiny"].steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was never stopped."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(new_trainer(folder))
    return folder


def test_two_runs_with_one_seed_give_the_same_bits(tmp_path: Path, whole: Path) -> None:
    train(new_trainer(tmp_path / "again"))
    train(new_trainer(tmp_path / "other", seed=1))
    assert bits(tmp_path / "again") == bits(whole)
    assert bits(tmp_path / "again")[0] != bits(tmp_path / "other")[0]


def test_activations_in_bfloat16_repeat_too_and_parameters_stay_float32(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(new_trainer(tmp_path / name, dtype="bfloat16", steps=3))
    train(new_trainer(tmp_path / "float32", steps=3))
    assert bits(tmp_path / "a") == bits(tmp_path / "b") != bits(tmp_path / "float32")
    assert {p.dtype for p in load(tmp_path / "a").parameters()} == {torch.float32}


@pytest.mark.parametrize("stops", [(1,), (5,), (7, 8, 19)], ids=str)
def test_a_run_that_was_stopped_ends_in_the_bits_of_one_that_never_was(
    tmp_path: Path, whole: Path, stops: tuple[int, ...]
) -> None:
    trainer = new_trainer(tmp_path / "stopped")
    for stop in stops:
        train(trainer, stop_after=stop)
        trainer = go_on(tmp_path / "stopped")
        assert trainer.step == stop
    train(trainer)
    assert bits(tmp_path / "stopped") == bits(whole)

    runs = (whole, tmp_path / "stopped")
    rows = [[dict(row) | {"tokens_per_s": 0} for row in read(folder / METRICS)] for folder in runs]
    assert rows[0] == rows[1]


class KilledError(Exception):
    pass


MOMENTS = ("rmtree", "save", "save_file", "copyfile", "write", "sync", "link", "replace", "delete_others")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_while_a_checkpoint_is_written_leaves_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, moment: str
) -> None:
    trainer = new_trainer(tmp_path / "killed")
    train(trainer, stop_after=5)
    before = bits(tmp_path / "killed")

    def kill(*_: Any, **__: Any) -> None:
        raise KilledError

    owners = {"rmtree": shutil, "copyfile": shutil, "write": checksums, "replace": os}
    with monkeypatch.context() as patched:
        patched.setattr(owners.get(moment, checkpoints), moment, kill)
        with pytest.raises(KilledError):
            checkpoints.write(tmp_path / "killed", 6, trainer.learner)
    assert bits(tmp_path / "killed") == before
    trainer = go_on(tmp_path / "killed")
    assert trainer.step == (6 if moment == "delete_others" else 5)
    load(tmp_path / "killed")
    if moment != "delete_others":  # the last kill is after the rename, with step 5's model under step 6's name
        train(trainer)
        assert bits(tmp_path / "killed") == bits(whole)
        assert [p.name for p in (tmp_path / "killed").glob("checkpoint-*")] == [f"checkpoint-{STEPS}"]


def test_a_loss_that_is_no_number_ends_the_run_and_not_its_checkpoint(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path / "run")
    train(trainer, stop_after=5)
    before = bits(tmp_path / "run")
    with torch.no_grad():
        trainer.model.lm_head.weight.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="step 6 is nan"):
        train(trainer)
    assert bits(tmp_path / "run") == before


def test_a_checkpoint_that_was_deleted_is_refused_and_no_new_start(tmp_path: Path) -> None:
    train(new_trainer(tmp_path / "run", steps=2))
    before = (tmp_path / "run" / METRICS).read_text()
    shutil.rmtree((tmp_path / "run" / "checkpoint").resolve())
    with pytest.raises(ValueError, match="checkpoint cannot be read"):
        go_on(tmp_path / "run")
    assert (tmp_path / "run" / METRICS).read_text() == before


def test_a_copy_of_a_run_that_followed_its_links_goes_on(tmp_path: Path) -> None:
    train(new_trainer(tmp_path / "run", steps=4), stop_after=2)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for name in ("run", "copy"):
        train(go_on(tmp_path / name))
    assert bits(tmp_path / "copy") == bits(tmp_path / "run")
    assert [p.name for p in (tmp_path / "copy").glob("checkpoint-*")] == ["checkpoint-4"]


def test_every_byte_is_predicted_exactly_once_an_epoch(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(1, 104)))
    windows = Windows(path, 10)
    assert windows.count == 10
    for epoch in range(3):
        batches = [windows.batch(3, step, 5) for step in range(2 * epoch, 2 * epoch + 2)]
        predicted = np.concatenate(batches)[:, 1:].flatten().tolist()
        assert sorted(predicted) == list(range(2, 102))
        assert predicted != sorted(predicted)
    first, second = (np.concatenate([windows.batch(3, step, 5) for step in steps]) for steps in ((0, 1), (2, 3)))
    assert not np.array_equal(first, second)
    whole = np.concatenate([windows.batch(3, step, 5) for step in range(12)])
    threes = np.concatenate([windows.batch(3, step, 3) for step in range(20)])
    assert np.array_equal(whole, threes)


def test_held_out_files_are_not_in_the_training_bytes(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / "text" / str(number % 3)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "text" / str(number % 3) / f"{number}.txt").write_text(f"<{number}>" * 20)
    (tmp_path / "text" / ".hidden").write_text("<hidden>")
    found = text_at(tmp_path / "text")
    write(found, tmp_path)
    training, held_out = ((tmp_path / name).read_bytes().split(SEPARATOR) for name in (TRAINING, HELD_OUT))
    assert len(training) + len(held_out) == 200
    assert not set(training) & set(held_out)
    assert 0.04 < len(b"".join(held_out)) / len(b"".join(training + held_out)) <= 0.05
    assert found == text_at(tmp_path / "text")
    # One more file changes little: the held-out set depends on each file's name.
    (tmp_path / "text" / "more.txt").write_text("more")
    assert len(set(found.held_out) - set(text_at(tmp_path / "text").held_out)) <= 1


def test_the_end_of_a_single_file_is_held_out(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    write(text_at(text), tmp_path)
    training, held_out = ((tmp_path / name).read_bytes() for name in (TRAINING, HELD_OUT))
    assert training + held_out == text.read_bytes()
    assert len(held_out) == round(0.05 * len(training + held_out))


def test_the_standard_library_is_there_without_tests_and_packages() -> None:
    found = stdlib()
    names = {path.name for path in found.training + found.held_out}
    assert {"argparse.py", "dataclasses.py", "typing.py"} <= names
    assert not {"site-packages", "test"}.intersection(*(path.parts for path in found.training))
    assert 0.03 < len(found.held_out) / len(found.training) < 0.2


def test_the_bigram_model_counts_pairs(tmp_path: Path) -> None:
    text, windows = b"abracadabra", b"cadabr"
    pairs, before = Counter(pairwise(text)), Counter(text[:-1])
    expected = [-math.log2((pairs[a, b] + 1) / (before[a] + 256)) for a, b in pairwise(windows)]
    found = Bigram(np.frombuffer(text, np.uint8)).bits_per_byte(np.array([list(windows)]))
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-12)


def test_the_bigram_model_counts_every_pair_of_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = np.frombuffer(b"abracadabra", np.uint8)
    whole = Bigram(text).bits
    monkeypatch.setattr("retrograd.train.bigram.PART", 3)
    assert np.array_equal(Bigram(text).bits, whole)


def test_the_learning_rate_rises_along_a_line_and_falls_to_zero_along_a_cosine() -> None:
    of = preset("cpu")
    rates = [lr_factor(step, of) for step in range(of.steps + 1)]
    top = round(of.warmup * of.steps)
    assert rates[:top] == pytest.approx([(step + 1) / top for step in range(top)])
    assert max(rates) == rates[top] == 1
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[(top + of.steps) // 2] == pytest.approx(0.5, abs=1e-2)
    assert rates[-1] == 0


def test_the_learning_rate_that_is_logged_is_the_one_that_is_used(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path / "run")
    rows = train(trainer)
    logged = [row["lr"] for row in rows if "lr" in row]
    assert logged == [trainer.preset.lr * lr_factor(step, trainer.preset) for step in range(STEPS)]


@pytest.mark.parametrize(
    ("arch", "undecayed"),
    [
        ("mamba", {"norm.weight", "mixer.A_log", "mixer.D", "mixer.conv1d.bias", "mixer.dt_proj.bias"}),
        (
            "mamba2",
            {"norm.weight", "mixer.A_log", "mixer.D", "mixer.conv1d.bias", "mixer.dt_bias", "mixer.norm.weight"},
        ),
        ("transformer", {"norm.weight", "norm2.weight", "mixer.conv1d.bias"}),
    ],
)
def test_norms_biases_and_decay_rates_do_not_decay(arch: str, undecayed: set[str]) -> None:
    own = preset("tiny", arch)
    model = LanguageModel(own.model)
    decays, others = adamw(model, own).param_groups
    assert others["weight_decay"] == 0 < decays["weight_decay"]
    assert {name.split(".", 3)[-1] for name in others["param_names"] if ".layers.0." in name} == undecayed
    assert len(decays["params"]) + len(others["params"]) == len(list(model.parameters()))


def test_a_model_learns_more_than_a_bigram_model(tmp_path: Path) -> None:
    # Nearly every letter repeats the one two positions before, which a bigram model cannot use.
    generator = np.random.default_rng(0)
    letters, other = list(generator.choice(list(b"ab"), 2)), generator.random(80_000) < 0.05
    for place in range(len(other)):
        letters.append(ord("a") + ord("b") - letters[place] if other[place] else letters[place])
    text = tmp_path / "text_of_two.txt"
    text.write_bytes(bytes(int(letter) for letter in letters))
    settings = new_trainer(tmp_path / "run", steps=60, lr=3e-2, final_windows=100).settings
    start(tmp_path / "pairs", settings, text_at(text))
    trainer = go_on(tmp_path / "pairs")
    train(trainer)
    row = trainer.finish()
    assert row["bigram_bits_per_byte"] == pytest.approx(1, abs=0.05)
    assert row["held_out_bits_per_byte"] < 0.5  # the best is the entropy of one letter in twenty, 0.29


def test_a_run_leaves_metrics_and_a_picture(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path / "run")
    assert trainer.bits_per_byte(8) == pytest.approx(8, abs=0.2)  # before training, each of 256 bytes is as likely
    rows = [*train(trainer), trainer.finish()]
    trainer.draw()
    assert read(tmp_path / "run" / METRICS) == rows
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps == list(range(1, STEPS + 1))
    assert [row["step"] for row in rows if "held_out_bits_per_byte" in row] == [5, 10, 15, 20]
    assert rows[-2]["tokens"] == STEPS * trainer.preset.batch * trainer.preset.time
    assert rows[-2]["bits_per_byte"] == rows[-2]["loss"] / math.log(2)
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_goes_on_with_the_metrics_of_its_checkpoint(tmp_path: Path) -> None:
    train(new_trainer(tmp_path / "run"), stop_after=5)
    path = tmp_path / "run" / METRICS
    whole = path.read_bytes()
    for later in (whole + b'{"step": 6, "tokens": 768}\n{"step": 7, "tok', whole[:-1], b"\xff", None):
        path.unlink() if later is None else path.write_bytes(later)
        go_on(tmp_path / "run")
        assert path.read_bytes() == whole


def test_a_line_of_metrics_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"step": 1}\n{"step": 2, "tok')
    assert read(tmp_path / METRICS) == [{"step": 1}]


@pytest.mark.parametrize("line", [b"no JSON", b"{}", b"5", b'{"step": "\xff"}', b"[" * 100_000])
def test_a_damaged_line_of_metrics_is_refused_by_its_number(tmp_path: Path, line: bytes) -> None:
    (tmp_path / METRICS).write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl: line 2 is no row"):
        read(tmp_path / METRICS)


def test_settings_come_back_from_their_file(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path / "run", lr=1 / 3)
    assert Settings.read(tmp_path / "run") == trainer.settings
    for name, original in PRESETS.items():
        assert Preset.from_dict(json.loads(json.dumps(original.to_dict()))) == original, name


@pytest.mark.slow
def test_a_run_through_torch_compile_repeats_and_resumes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(new_trainer(tmp_path / name, compile=True, steps=4), stop_after=2 if name == "b" else None)
    train(go_on(tmp_path / "b"))
    assert bits(tmp_path / "a") == bits(tmp_path / "b")
