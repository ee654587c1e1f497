"""The files of a run: a changed or damaged file is refused by name, or the run ends with the same bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from train_runs import METRICS, bits, go_on, new_trainer, train, write_text

from retrograd.nn import LanguageModel, checksums, load, save
from retrograd.train import checkpoint, start, text_at
from retrograd.train import runs as runs_of

STEPS, STOP = 4, 2
FILES = (
    "SHA256SUMS",
    "settings.json",
    "training.bin",
    "held_out.bin",
    "metrics.jsonl",
    "checkpoint/SHA256SUMS",
    "checkpoint/config.json",
    "checkpoint/model.safetensors",
    "checkpoint/optimizer.safetensors",
    "checkpoint/progress.json",
    "checkpoint/metrics.jsonl",
)


def flipped(place: float, bit: int) -> Callable[[bytes], bytes]:
    def flip(whole: bytes) -> bytes:
        number = int(place * (len(whole) - 1))
        return whole[:number] + bytes([whole[number] ^ 1 << bit]) + whole[number + 1 :]

    return flip


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit near the start": flipped(0.1, 0),
    "a bit in the middle": flipped(0.5, 4),
    "the highest bit of the last byte": flipped(1.0, 7),
    "cut short": lambda whole: whole[:-1],
    "half": lambda whole: whole[: len(whole) // 2],
    "empty": lambda whole: b"",
    "longer": lambda whole: whole + whole[-9:],
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped halfway."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    train(new_trainer(folder, steps=STEPS), stop_after=STOP)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, never stopped."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(new_trainer(folder, steps=STEPS))
    return folder


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, for a test to change."""
    return shutil.copytree(stopped, tmp_path / "run", symlinks=True)


def refusal(folder: Path) -> str | None:
    """The error of a run that is not resumed; None if it is resumed to its end."""
    try:
        trainer = go_on(folder)
    except (ValueError, OSError) as error:
        return str(error)
    train(trainer)
    return None


def outcome(folder: Path) -> tuple[bytes, ...]:
    """The files of a finished run, without the speed in the metrics."""
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return (*bits(folder), repr([row | {"tokens_per_s": 0} for row in rows]).encode())


def test_the_files_that_are_damaged_here_are_all_that_a_run_has(stopped: Path) -> None:
    found = {path.relative_to(stopped.resolve()).as_posix() for path in stopped.resolve().rglob("*") if path.is_file()}
    assert found - {"config.json", "model.safetensors"} == {
        name.replace("checkpoint/", f"checkpoint-{STOP}/") for name in FILES
    }


@pytest.mark.parametrize("name", FILES)
def test_a_run_with_a_damaged_file_is_refused_by_its_name_or_ends_in_the_same_bits(
    stopped: Path, whole: Path, tmp_path: Path, name: str
) -> None:
    for number, (damage, change) in enumerate(DAMAGES.items()):
        run = shutil.copytree(stopped, tmp_path / str(number), symlinks=True)
        (run / name).write_bytes(change((run / name).read_bytes()))
        said = refusal(run)
        assert outcome(run) == outcome(whole) if said is None else Path(name).name in said, damage


@pytest.mark.parametrize("name", FILES)
def test_a_run_without_a_file_is_refused_by_its_name_or_ends_in_the_same_bits(
    whole: Path, run: Path, name: str
) -> None:
    (run / name).unlink()
    said = refusal(run)
    assert outcome(run) == outcome(whole) if name == METRICS else Path(name).name in str(said)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_damaged_model_of_a_run_is_not_loaded(run: Path, name: str) -> None:
    for change in DAMAGES.values():
        before = (run / name).read_bytes()
        (run / name).write_bytes(change(before))
        with pytest.raises(ValueError, match=f"{name} is not the file that SHA256SUMS beside it lists"):
            load(run)
        (run / name).write_bytes(before)
    load(run)


def listed_anew(folder: Path) -> None:
    """Write the checksums again, like `sha256sum * > SHA256SUMS` after an intended change."""
    checksums.write(folder, checksums.read(folder))


@pytest.mark.parametrize(
    ("progress", "says"),
    [
        (b"[]", "names no step"),
        (b"{}", "names no step"),
        (b"\xff", "names no step"),
        (b'{"step": null}', "step is None, expected an integer from 0 to 4"),
        (b'{"step": true}', "step is True"),
        (b'{"step": -1}', "step is -1"),
        (b'{"step": 5}', "step is 5, expected an integer from 0 to 4, the run's steps"),
    ],
)
def test_progress_that_names_no_step_of_the_run_is_refused(run: Path, progress: bytes, says: str) -> None:
    (run / "checkpoint" / "progress.json").write_bytes(progress)
    listed_anew(run / "checkpoint")
    with pytest.raises(ValueError, match=rf"progress.json.*{says}"):
        go_on(run)


def test_a_checkpoint_of_another_shape_is_refused(run: Path) -> None:
    settings = json.loads((run / "settings.json").read_text())
    settings["preset"]["model"]["d_model"] = 24
    (run / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"settings.json is not the file that SHA256SUMS beside it lists"):
        go_on(run)
    listed_anew(run)
    with pytest.raises(ValueError, match="another shape"):
        go_on(run)


def test_a_model_saved_into_a_checkpoint_is_loaded_and_not_trained_on(run: Path) -> None:
    model = LanguageModel(load(run).config)
    save(model, run / "checkpoint")
    assert load(run).state_dict().keys() == model.state_dict().keys()
    with pytest.raises(ValueError, match=r"config.json is not listed in SHA256SUMS beside it"):
        go_on(run)


def test_a_kill_while_a_run_begins_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = new_trainer(tmp_path / "run").settings
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda _: None)  # a kill runs no cleanup
        patched.setattr(runs_of.checksums, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "killed", settings, text_at(write_text(tmp_path / "text.txt")))
    with pytest.raises(ValueError, match=r"killed is not the folder of a run: it has no SHA256SUMS"):
        go_on(tmp_path / "killed")


def test_a_model_is_loaded_while_its_run_puts_a_new_checkpoint_in_its_place(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = go_on(run)
    check, puts = checksums.check, [3]

    def check_late(path: Path, *, listed: bool = False) -> None:
        if puts and path.name == "model.safetensors":
            path = path.resolve()
            checkpoint.write(run, puts.pop(), trainer.learner)
        check(path, listed=listed)

    monkeypatch.setattr(checksums, "check", check_late)
    load(run)
    assert not puts
