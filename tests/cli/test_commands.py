"""The command line: its output and exit status."""

import builtins
import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_sample import sample_rows
from commands import refused, run, without_gpu
from rich.table import Column

import retrograd.cli
from retrograd.bench.results import append
from retrograd.cli import console
from retrograd.cli.check import tables_of
from retrograd.ops import infos
from retrograd.testing.verify import Check

INFO = infos.info("rms_norm")
ALIKE = ("check", "bench")  # commands that choose ops and cases in the same way


def test_info_of_an_op_lists_what_it_takes() -> None:
    listed = run("info", "linear_scan").output
    assert "initial_state" in listed
    assert "return_final_state" in listed
    assert run("info", "no_op").exit_code == 2


@without_gpu
@pytest.mark.parametrize("command", ALIKE)
def test_an_implementation_is_run_alone_or_not_at_all(command: str) -> None:
    assert "no kernel runs on this device" in refused(command, "rms_norm", "--implementation", "triton")


def test_info() -> None:
    result = run("info")
    assert result.exit_code == 0, result.output
    assert torch.__version__ in result.stdout
    assert "rms_norm" in result.stdout
    assert "portable" in result.stdout


CHECK = ("check", "causal_conv1d", "--cases", "plain", "--device", "cpu", "--framework", "torch")


@pytest.mark.parametrize(
    ("given", "words"),
    [(("info",), {"causal_conv1d", "framework", "portable", "Triton"}), (CHECK, {"plain", "weight", "bits"})],
)
@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_word_and_no_number_is_cut_however_narrow_the_terminal_is(
    given: tuple[str, ...], words: set[str], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.out, "width", width)
    printed = run(*given).stdout
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= width
    assert "…" not in printed
    assert words <= set(printed.split())


def test_a_table_too_wide_for_the_terminal_is_printed_as_headings_and_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.out, "width", 20)
    table = console.table("Title", "name", Column("text"), "empty")
    table.add_row("causal_conv1d", "words that are folded", "")
    with console.out.capture() as capture:
        console.show(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert lines == ["Title", "", "name  causal_conv1d", "text  words that are", "      folded", ""]


def test_the_longest_names_of_every_op_fit_a_terminal_of_80_columns() -> None:
    for name in infos.NAMES:
        info = infos.info(name)
        checks = [
            Check(name, case.name, f"d {argument}", 1e-10, 1e-10, repeats=True)
            for case in info.tagged("test", "gpu")
            for argument in info.arguments
        ]
        (table,) = tables_of([("torch", check) for check in checks])
        assert console.narrowest(table) <= 80


def test_version_names_those_of_the_frameworks_too() -> None:
    result = run("--version")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"retrograd {retrograd.__version__}, torch {torch.__version__}, triton ")
    assert len(result.stdout.splitlines()) == 1


def test_python_m_retrograd_is_the_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "retrograd", "check", "x"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("retrograd: op is 'x', expected one of rms_norm")


@pytest.mark.parametrize("command", [None, "info", "check", "bench", "train", "generate"])
def test_help(command: str | None) -> None:
    result = run(*([command] if command else []), "--help")
    assert result.exit_code == 0, result.output
    assert "--help" in result.stdout


def test_check_passes() -> None:
    options = ("--cases", "plain,pren*rm", "--device", "cpu", "--framework", "torch")
    result = run("check", "rms_norm", *options)
    assert result.exit_code == 0, result.output
    assert "d residual" in result.stdout
    assert "8 quantities, 8 within budget, 8 repeat to the bit" in result.stdout
    assert "all passed" in result.stdout


def test_check_in_jax() -> None:
    pytest.importorskip("jax")
    result = run("check", "rms_norm", "--cases", "plain", "--device", "cpu", "--framework", "jax")
    assert result.exit_code == 0, result.output
    assert "jax on cpu: 3 quantities" in result.stdout


calls = itertools.count()


def slightly_wrong(x: torch.Tensor, **arguments: Any) -> Any:
    return INFO.torch(x, **arguments) * 1.1


def unsteady(x: torch.Tensor, **arguments: Any) -> Any:
    return INFO.torch(x, **arguments) * (1 + 2**-7 * (next(calls) % 2))


def raises(x: torch.Tensor, **arguments: Any) -> Any:
    raise RuntimeError("[broken]")


@pytest.mark.parametrize(
    ("broken", "text"), [(slightly_wrong, "1 quantities"), (unsteady, "differs"), (raises, "RuntimeError: [broken]")]
)
def test_check_fails(broken: Callable[..., Any], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infos, "info", lambda name: dataclasses.replace(INFO, torch=broken))
    result = run("check", "rms_norm", "--cases", "no_weight", "--device", "cpu", "--framework", "torch")
    assert result.exit_code == 1, result.output
    assert text.replace("1 quantities", "quantities failed") in result.stdout


def test_check_of_several_ops() -> None:
    options = ("--cases", "plain", "--device", "cpu", "--framework", "torch")
    result = run("check", "rms_norm", "causal_conv1d", "rms_norm", *options)
    assert result.exit_code == 0, result.output
    assert "rms_norm in torch" in result.stdout
    assert "causal_conv1d in torch" in result.stdout
    assert "torch on cpu: 6 quantities" in result.stdout  # of each op once


@pytest.mark.parametrize("command", ALIKE)
def test_ops_and_cases_are_named_alike(command: str) -> None:
    expected = "op is 'soft_max', expected one of rms_norm, linear_scan"
    assert expected in refused(command, "soft_max")
    assert expected in refused(command, "rms_norm", "soft_max", "--cases", "plain")
    found = refused(command, "rms_norm", "ssd", "--cases", "nothing,none*")
    assert "--cases is 'nothing,none*', which matches no" in found
    assert "case of rms_norm or ssd" in found
    found = refused(command, "rms_norm", "--cases", "*,nothing")
    assert "--cases is 'nothing', which matches no" in found


def test_bad_input(tmp_path: Path) -> None:
    assert "--device is 'tpu', expected cpu or cuda" in refused("check", "--device", "tpu")
    assert "--framework is 'numpy'" in refused("check", "--framework", "numpy", "--device", "cpu")
    assert "peer is 'nobody', expected one of the torch peers" in refused("bench", "rms_norm", "--peers", "nobody")
    assert "peer is 'nobody', expected one of the torch peers" in refused("bench", "--peers", "quack,nobody")
    several = ("bench", "rms_norm", "ssd", "--plot", str(tmp_path / "a.png"))
    assert "--plot draws one op, not rms_norm, ssd" in refused(*several)
    plot_only = ("bench", "rms_norm", "--plot-only", "--plot", str(tmp_path / "a.png"), "--out")
    assert "cannot be read" in refused(*plot_only, str(tmp_path / "none.jsonl"))


@without_gpu
def test_no_gpu() -> None:
    assert "sees none here" in refused("bench", "rms_norm")
    assert "PyTorch sees no GPU" in refused("check", "--device", "cuda")


def test_plot_only(tmp_path: Path) -> None:
    rows, picture = tmp_path / "rms_norm.jsonl", tmp_path / "rms_norm.png"
    for row in sample_rows():
        append(rows, row)
    command = ("bench", "rms_norm", "--plot-only", "--out", str(rows))
    assert "needs --plot" in refused(*command)
    result = run(*command, "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "no timed row of jax" in refused(*command, "--plot", str(picture), "--framework", "jax")


def test_table_of_results() -> None:
    from rich.console import Console

    from retrograd.cli.bench import table_of

    console = Console(width=120)
    with console.capture() as capture:
        console.print(table_of(sample_rows(), None))
    assert "4000 100%" in capture.get()
    assert "2000  50%" in capture.get()


def test_without_typer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "typer":
            raise ModuleNotFoundError("No module named 'typer'", name="typer")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "typer")
    assert retrograd.cli.main() == 2
    assert capsys.readouterr().err == 'retrograd: typer is not installed; pip install "retrograd[cli]"\n'
