"""How `benchmarks/gpu.py` reads the report of the contract, and what it measures."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
OPS = ["linear_scan", "selective_scan"]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def case(name: str, classname: str = "tests.test_contract", failed: bool = True) -> str:
    return f'<testcase classname="{classname}" name="{name}">{"<failure>how</failure>" if failed else ""}</testcase>'


def test_the_tests_of_an_op_are_not_those_of_one_whose_name_begins_alike(script: ModuleType) -> None:
    assert script.selection("linear") == "(linear and not linear_scan)"
    assert script.selection("linear_scan") == "linear_scan"
    assert script.is_of("linear", "tests.contract.test_gpu test_a[linear-plain-cuda]")
    assert not script.is_of("linear", "tests.contract.test_gpu test_a[linear_scan-plain-cuda]")


@pytest.mark.parametrize(
    ("cases", "red"),
    [
        ([case("test_a[linear_scan-plain-cuda]"), case("test_a[selective_scan-x]", failed=False)], {"linear_scan"}),
        ([case("test_large", "tests.test_selective_scan_gpu")], {"selective_scan"}),
        ([case("test_a[linear_scan-plain-cuda]"), case("test_streams")], set(OPS)),
        ([], set(OPS)),  # the run failed without a failing test
        (None, set(OPS)),
    ],
)
def test_red_ops(
    script: ModuleType, cases: list[str] | None, red: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(name: str, command: list[str]) -> bool:
        assert "linear_scan or selective_scan" in command
        (report,) = (word.removeprefix("--junitxml=") for word in command if word.startswith("--junitxml="))
        if cases is not None:
            Path(report).write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
        return False

    monkeypatch.setattr(script, "step", step)
    report_file = tmp_path / "failures.txt"
    assert script.red_ops(OPS, 2, report_file) == red
    if cases is not None:
        assert report_file.read_text().count("\nhow") == sum("failure" in one for one in cases)


def test_a_green_contract(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*arguments: Any) -> bool:
        return True

    monkeypatch.setattr(script, "step", step)
    report_file = tmp_path / "failures.txt"
    report_file.write_text("of an earlier run")
    assert script.red_ops(OPS, 2, report_file) == set()
    assert not report_file.exists()


def test_a_verdict_counts_for_its_code(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "contract.json"
    path.write_text(f'{{"code": "{script.tested_code()}", "green": ["linear_scan"]}}')
    assert script.ops_not_green(path, OPS) == {"selective_scan"}
    monkeypatch.setattr(script, "tested_code", lambda: "other")
    assert script.ops_not_green(path, OPS) == set(OPS)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr("retrograd.core.torch.launch.arch_of", lambda device: None)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("peers", ["fla", ""])
def test_peers_of_a_whole_run_are_those_of_torch(
    script: ModuleType, peers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    commands: list[list[str]] = []
    monkeypatch.setattr(script, "step", lambda name, command: commands.append(command))
    monkeypatch.setattr(
        sys, "argv", ["gpu.py", "linear_scan", "--no-tests", "--peers", peers, "--results", str(tmp_path)]
    )
    assert script.main() == 1
    in_torch, in_jax = commands
    assert in_torch[-4:] == ["--framework", "torch", "--peers", peers]
    assert in_jax[-2:] == ["--framework", "jax"]
    assert "--peers" not in in_jax


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("framework", "peers", "names"),
    [
        ("torch", ["--peers", "fla"], ["fla"]),
        ("jax", ["--peers", "lax.scan"], ["lax.scan"]),
        ("jax", ["--peers", ""], []),
        ("jax", [], ["lax.associative_scan", "lax.scan"]),
    ],
)
def test_peers_of_one_framework(
    script: ModuleType,
    framework: str,
    peers: list[str],
    names: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("jax")
    measured: list[str] = []

    def run(op: Any, cases: Any, peers: Any, *more: Any) -> list[str]:
        measured.extend(peer.name for peer in peers)
        return []

    monkeypatch.setattr(f"retrograd.bench.run{'_jax' if framework == 'jax' else ''}.run", run)
    monkeypatch.setattr(
        sys, "argv", ["gpu.py", "linear_scan", "--framework", framework, "--results", str(tmp_path), *peers]
    )
    assert script.main() == 0
    assert measured == names
