"""`retrograd train` and `retrograd generate`: output, files, refusals and signals."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from commands import refused, run, without_gpu
from train_runs import METRICS, bits, go_on, new_trainer, train, write_text

from retrograd.cli import train as train_command
from retrograd.nn import LanguageModel, MambaConfig, checksums, load, save
from retrograd.train import alone, checkpoint
from retrograd.train.torch_learner import TorchLearner

COMMAND = (sys.executable, "-c", "import sys; from retrograd.cli import main; sys.exit(main())")


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 200 bytes behind every run would take most of the time of these tests."""
    monkeypatch.setattr(train_command, "SAMPLE_BYTES", 20)


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., tuple[str | Path, ...]]:
    """The arguments of a run of the tiny preset, four steps by default."""
    text = write_text(tmp_path / "text.txt")

    def arguments(*more: str | Path, steps: int = 4) -> tuple[str | Path, ...]:
        options = ("--preset", "tiny", "--data", text, "--device", "cpu", "--steps", str(steps), "--out", tmp_path)
        return ("train", *options, *more)

    return arguments


def test_train_leaves_a_curve_metrics_and_a_model(tmp_path: Path, tiny: Any) -> None:
    result = run(*tiny())
    assert result.exit_code == 0, result.output
    assert "bits per byte; a bigram model" in result.stdout
    for prompt in ("def ", "class ", "import "):
        assert prompt in result.stdout
    folder = tmp_path / "tiny-0"
    assert f"generate {folder}" in result.stdout
    assert (folder / "curve.png").stat().st_size > 1000
    assert len((folder / METRICS).read_text().splitlines()) == 5
    assert load(folder).config.vocab_size == 256


def test_a_second_run_takes_the_next_free_name_and_gives_the_same_bits(tmp_path: Path, tiny: Any) -> None:
    for _ in range(2):
        assert run(*tiny()).exit_code == 0
    assert bits(tmp_path / "tiny-0") == bits(tmp_path / "tiny-0-2")


def test_a_folder_is_text_too(tmp_path: Path) -> None:
    write_text(tmp_path / "folder" / "a" / "one.txt")
    write_text(tmp_path / "folder" / "two.txt", seed=1)
    options = ("--preset", "tiny", "--steps", "1", "--device", "cpu", "--out", tmp_path / "runs")
    result = run("train", "--data", tmp_path / "folder", *options)
    assert result.exit_code == 0, result.output
    assert "2 files" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--preset", "huge"), "preset is 'huge', expected tiny or cpu or gpu"),
        (("--steps", "0"), "steps is 0, expected 1 or more"),
        (("--seed", "-1"), "seed is -1, expected 0 to 2^63 - 1"),
        (("--seed", str(2**63)), "expected 0 to 2^63 - 1"),
        (("--out", __file__), "Not a directory"),
        (("--dtype", "float16"), "dtype is 'float16', expected float32 or bfloat16"),
        (("--device", "tpu"), "--device is 'tpu', expected cpu or cuda"),
        (("--name", "a/b"), "--name is 'a/b', expected the name of a folder"),
        (("--name", ""), "--name is '', expected the name of a folder"),
        (("--data", "/no/such/place"), "data is '/no/such/place', expected a file or a folder that exists"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_bad_options_get_one_line_and_leave_nothing(tmp_path: Path, tiny: Any, options: Any, said: str) -> None:
    assert said in refused(*tiny(), *options)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_bad_text_gets_one_line_and_leaves_nothing(tmp_path: Path, tiny: Any) -> None:
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    (tmp_path / "empty" / "file").touch()
    write_text(tmp_path / "short", words=1)
    write_text(tmp_path / "long_enough_for_training_alone", words=60)
    before = set(tmp_path.rglob("*"))
    assert "a folder without text" in refused(*tiny("--data", tmp_path / "empty"))
    assert "the training text has 0 bytes, expected at least 33" in refused(
        *tiny("--data", tmp_path / "empty" / "file")
    )
    assert "expected at least 33, one window" in refused(*tiny("--data", tmp_path / "short"))
    assert "the held-out text has" in refused(*tiny("--data", tmp_path / "long_enough_for_training_alone"))
    assert set(tmp_path.rglob("*")) == before


@without_gpu
def test_a_gpu_that_is_not_there_gets_one_line(tiny: Any) -> None:
    assert "the device is cuda, but PyTorch sees no GPU here" in refused(*tiny("--device", "cuda"))
    assert "sees no GPU" in refused("generate", "anywhere", "--device", "cuda")


def test_a_compiler_that_is_not_there_gets_one_line(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert "--compile needs a C++ compiler on a CPU, but /nowhere/c++ is not there" in refused(
        *tiny("--compile", "--device", "cpu")
    )


def test_a_name_that_is_taken_gets_one_line(tmp_path: Path, tiny: Any) -> None:
    (tmp_path / "taken").mkdir()
    assert f"{tmp_path / 'taken'} exists; --resume" in refused(*tiny("--name", "taken"))


def test_resume_refuses_what_it_cannot_go_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(new_trainer(folder, steps=2))
    assert "is not the folder of a run" in refused("train", "--resume", tmp_path)
    for option, value, own in (("steps", "30", "2"), ("seed", "1", "0"), ("dtype", "bfloat16", "'float32'")):
        line = refused("train", "--resume", folder, f"--{option}", value)
        assert f"--{option} is" in line
        assert f"has {own}; a run keeps its settings" in line
    assert "--compile is True" in refused("train", "--resume", folder, "--compile")
    assert "expected one of them" in refused("train", "--resume", folder, "--name", "run")
    assert "expected one of them" in refused("train", "--resume", folder, "--out", tmp_path)
    (folder / "training.bin").unlink()
    assert "training.bin" in refused("train", "--resume", folder)
    (folder / "settings.json").write_text("{}")
    assert "settings.json is not the file that SHA256SUMS beside it lists" in refused("train", "--resume", folder)


def test_a_run_that_another_process_trains_is_left_to_it(tmp_path: Path) -> None:
    new_trainer(tmp_path / "run", steps=2)
    with alone(tmp_path / "run"):
        assert "another process trains the run" in refused("train", "--resume", tmp_path / "run")
    assert run("train", "--resume", tmp_path / "run").exit_code == 0


def test_resume_refuses_a_checkpoint_of_another_shape(tmp_path: Path) -> None:
    train(new_trainer(tmp_path / "run", steps=2))
    save(LanguageModel(MambaConfig(d_model=8, n_layer=1, vocab_size=256)), tmp_path / "run" / "checkpoint")
    checksums.write(tmp_path / "run" / "checkpoint", checkpoint.FILES)
    assert "another shape" in refused("train", "--resume", tmp_path / "run")


def wait_for(process: subprocess.Popen[str], path: Path) -> None:
    """Wait until the process has written this file."""
    end = time.monotonic() + 60
    while not path.exists() or not path.stat().st_size:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def started(arguments: tuple[str | Path, ...]) -> subprocess.Popen[str]:
    """Start the command in a separate process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.slow), pytest.param(signal.SIGTERM, id="SIGTERM")],
)
def test_a_signal_saves_and_says_how_to_go_on(tmp_path: Path, tiny: Any, number: signal.Signals) -> None:
    process = started(tiny(steps=100_000))
    wait_for(process, tmp_path / "tiny-0" / METRICS)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    trainer = go_on(tmp_path / "tiny-0")
    assert trainer.step > 0
    assert f"Stopped and saved at step {trainer.step}" in said
    assert f"train --resume {tmp_path / 'tiny-0'}" in said


@pytest.mark.parametrize(
    "moment", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("Trainer", "train_with_bar")), "show_results"]
)
def test_an_interrupt_before_the_first_step_or_after_the_last_says_how_to_go_on(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(train_command, moment, interrupt)
        result = run(*tiny())
    assert result.exit_code == 130
    assert f"train --resume {tmp_path / 'tiny-0'}" in result.stderr
    assert run("train", "--resume", tmp_path / "tiny-0").exit_code == 0
    assert run(*tiny()).exit_code == 0
    assert bits(tmp_path / "tiny-0") == bits(tmp_path / "tiny-0-2")


def test_a_full_disk_ends_the_run_with_a_line_and_not_its_checkpoint(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", full)
        result = run(*tiny())
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert f"train --resume {tmp_path / 'tiny-0'}" in result.stderr
    assert run("train", "--resume", tmp_path / "tiny-0").exit_code == 0


def test_the_curve_is_there_also_where_nobody_reads_the_samples(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(train_command, "show_results", closed)
    assert run(*tiny()).exit_code == 1
    assert (tmp_path / "tiny-0" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_kill_leaves_a_checkpoint_from_which_the_same_bits_are_reached(tmp_path: Path, tiny: Any) -> None:
    process = started(tiny(steps=100_000))
    wait_for(process, tmp_path / "tiny-0" / "model.safetensors")
    process.kill()
    process.wait()
    trainer = go_on(tmp_path / "tiny-0")
    end = trainer.step + 2
    train(trainer, stop_after=end)
    train(new_trainer(tmp_path / "whole", steps=100_000), stop_after=end)
    assert bits(tmp_path / "tiny-0") == bits(tmp_path / "whole")


def test_resume_from_the_command_line_ends_in_the_bits_of_a_run_never_stopped(tmp_path: Path) -> None:
    train(new_trainer(tmp_path / "whole", steps=4))
    train(new_trainer(tmp_path / "stopped", steps=4), stop_after=3)
    for _ in range(2):  # resuming a finished run evaluates it again and changes nothing
        result = run("train", "--resume", tmp_path / "stopped")
        assert result.exit_code == 0, result.output
        assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")
        assert len((tmp_path / "stopped" / METRICS).read_text().splitlines()) == 5


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A trained run; its weights are scaled up so that the likeliest token is unambiguous."""
    trainer = new_trainer(tmp_path / "run", steps=4)
    train(trainer)
    with torch.no_grad():
        trainer.model.lm_head.weight *= 4
    save(trainer.model, tmp_path / "model")
    return tmp_path / "model"


def test_generate_prints_what_the_full_forward_gives(trained: Path) -> None:
    prompt, count = "def é", 40
    result = run(
        "generate", trained, "--prompt", prompt, "--tokens", str(count), "--temperature", "0", "--device", "cpu"
    )
    assert result.exit_code == 0, result.output
    model = load(trained)
    tokens = list(prompt.encode())
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    text = bytes(tokens).decode(errors="replace")
    assert result.stdout == "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text) + "\n"


def test_generate_draws_what_the_full_forward_draws(trained: Path) -> None:
    prompt, count = "def ", 40
    options = ("--prompt", prompt, "--tokens", str(count), "--temperature", "0.5", "--seed", "3", "--device", "cpu")
    results = [run("generate", trained, *options).stdout for _ in range(2)]
    model, uniform = load(trained), Random(3)
    tokens = list(prompt.encode())
    with torch.no_grad():
        for _ in range(count):
            shares = torch.softmax(model(torch.tensor([tokens]))[0, -1].double() / 0.5, -1).cumsum(0)
            tokens.append(int((shares <= uniform.random()).sum()))
    text = bytes(tokens).decode(errors="replace")
    expected = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text) + "\n"
    assert results == [expected, expected]


def test_generate_at_the_smallest_temperature_takes_the_likeliest_byte(trained: Path) -> None:
    command = ("generate", trained, "--tokens", "20", "--device", "cpu", "--temperature")
    expected = run(*command, "0").stdout
    for temperature in ("1e-10", "1e-40", "5e-324"):
        assert run(*command, temperature).stdout == expected


def test_a_terminal_that_does_not_know_a_character_gets_another() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = subprocess.run([*COMMAND, "info"], capture_output=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr


def test_generate_ends_after_a_text(trained: Path) -> None:
    options = ("--tokens", "60", "--seed", "3", "--device", "cpu")
    text = run("generate", trained, *options).stdout
    end = next(c for c in text[12:] if c.isascii() and c.isalnum())
    expected = text[: text.index(end, len("def ")) + 1] + "\n"
    assert run("generate", trained, *options, "--stop", "no such text", "--stop", end).stdout == expected


def test_generate_draws_from_the_likeliest(trained: Path) -> None:
    options = ("--tokens", "30", "--device", "cpu")
    expected = run("generate", trained, *options, "--temperature", "0").stdout
    assert run("generate", trained, *options, "--top-k", "1").stdout == expected
    assert run("generate", trained, *options, "--top-p", "1e-9").stdout == expected


def test_generate_streams(trained: Path) -> None:
    process = started(("generate", trained, "--tokens", "1000000", "--device", "cpu"))
    assert process.stdout is not None
    assert process.stdout.read(30).startswith("def ")
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_generate_refuses_bad_input(tmp_path: Path, trained: Path) -> None:
    assert "holds no model that can be read" in refused("generate", tmp_path / "nowhere")
    assert "--prompt is empty" in refused("generate", trained, "--prompt", "")
    assert "--tokens is -1" in refused("generate", trained, "--tokens", "-1")
    assert "--temperature is -1.0" in refused("generate", trained, "--temperature", "-1")
    assert "--seed is -1" in refused("generate", trained, "--seed", "-1")
    assert "--top-k is 0" in refused("generate", trained, "--top-k", "0")
    assert "--top-p is 0.0" in refused("generate", trained, "--top-p", "0")
    assert "--top-p is nan" in refused("generate", trained, "--top-p", "nan")
    assert "--stop is empty" in refused("generate", trained, "--stop", "")
    assert "--temperature is nan" in refused("generate", trained, "--temperature", "nan")
    assert "--temperature is inf" in refused("generate", trained, "--temperature", "inf")
    save(LanguageModel(MambaConfig(d_model=8, n_layer=1, vocab_size=300)), tmp_path / "words")
    assert "a model of 300 tokens, expected 256" in refused("generate", tmp_path / "words")
    weights = tmp_path / "words" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    assert "holds no model that can be read" in refused("generate", tmp_path / "words")
    weights.unlink()
    (tmp_path / "words" / "pytorch_model.bin").write_text("no pickle")
    assert "holds no model that can be read" in refused("generate", tmp_path / "words")
    (tmp_path / "words" / "config.json").write_text('{"d_model": 1000000000000}')
    assert "holds no model that can be read" in refused("generate", tmp_path / "words")


def test_generate_refuses_a_model_of_nan_with_one_line(tmp_path: Path, trained: Path) -> None:
    model = load(trained)
    with torch.no_grad():
        model.backbone.norm_f.weight.fill_(float("nan"))
    save(model, tmp_path / "nan")
    for temperature in ("0", "0.7"):
        line = refused("generate", tmp_path / "nan", "--temperature", temperature, "--device", "cpu")
        assert f"{tmp_path / 'nan'}: generate: model has NaN or infinite logits for token 0" in line


def test_generate_refuses_a_config_of_too_many_layers_at_once(trained: Path) -> None:
    config = json.loads((trained / "config.json").read_text())
    (trained / "config.json").write_text(json.dumps(config | {"n_layer": 10**7}))
    assert f"backbone.layers.{config['n_layer']}.norm.weight is missing" in refused("generate", trained)


def test_generate_refuses_the_damaged_model_of_a_run(tmp_path: Path) -> None:
    train(new_trainer(tmp_path / "run", steps=2))
    path = tmp_path / "run" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert "model.safetensors is not the file that SHA256SUMS" in refused("generate", tmp_path / "run")


def test_a_model_that_is_no_longer_a_number_ends_the_run_with_a_line(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(learner: TorchLearner, *_: Any) -> torch.Tensor:
        with torch.no_grad():
            learner.model.backbone.norm_f.weight.fill_(float("nan"))
        return torch.tensor(1.0)

    monkeypatch.setattr(TorchLearner, "step", broken)
    result = run(*tiny())
    assert result.exit_code == 1
    assert "the held-out loss after step 4 is nan" in result.stderr


def test_a_run_in_jax_without_optax_ends_with_a_line_and_no_folder(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import retrograd.cli.train as command

    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "optax" else True)
    result = run(*tiny(), "--framework", "jax", "--arch", "hybrid")
    assert result.exit_code == 2
    assert 'optax is not installed; pip install "retrograd[train-jax]"' in result.stderr
    assert not list(tmp_path.glob("tiny-*"))
