"""The package as pip sees it: requirements, the two archives, and the project page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from floors import PROJECT, floors

markdown = pytest.importorskip("readme_renderer.markdown")  # a GPU machine may not have it

ROOT = PROJECT.parent
MAKEFILE = (ROOT / "Makefile").read_text()

# torch -> the Triton that its wheel for Linux on x86-64 requires, from Requires-Dist in the wheels' metadata.
TRITON_OF_TORCH = {
    (2, 9): (3, 5),
    (2, 10): (3, 6),
    (2, 11): (3, 6),
    (2, 12): (3, 7),
    (2, 13): (3, 7),
    (2, 14): (3, 8),
    (2, 15): (3, 9),
}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def test_a_torch_that_is_recent_enough_is_kept_with_the_triton_that_it_brought() -> None:
    required = tomllib.loads(PROJECT.read_text())["project"]
    required = required["dependencies"] + required["optional-dependencies"]["torch"]
    assert not [one for one in required if re.match(r"(triton|nvidia|cuda)", one)]
    torch, triton = numbers(floors()["torch"]), numbers(floors()["triton"])
    assert [one for one, brought in TRITON_OF_TORCH.items() if brought >= triton] == [
        one for one in TRITON_OF_TORCH if one >= torch
    ]


def test_the_oldest_triton_is_the_one_that_the_tests_run_with() -> None:
    (pinned,) = re.findall(r"triton==([\d.]+)", MAKEFILE)
    assert numbers(pinned) == (*numbers(floors()["triton"]), 0)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


@pytest.fixture(scope="module")
def metadata(archives: tuple[Path, Path]) -> Message:
    """The wheel's metadata; the package's page is the message's body."""
    with zipfile.ZipFile(archives[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        return Parser().parsestr(wheel.read(name).decode())


def test_the_archives_hold_the_package_and_what_builds_it(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[0]) as source:
        of_source = {name.split("/", 1)[1] for name in source.getnames()}
    with zipfile.ZipFile(archives[1]) as wheel:
        of_wheel = set(wheel.namelist())
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "retrograd").rglob("*.py")} | {"retrograd/py.typed"}
    for names, more in ((of_source, {"hatch_build.py"}), (of_wheel, set())):
        assert {name for name in names if name.endswith((".py", "py.typed"))} == package | more
    beside = {name for name in of_source if not name.startswith("retrograd/")}
    files = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml"}
    assert beside == files


def test_the_page_of_the_package_refers_to_nothing_that_is_not_there(metadata: Message) -> None:
    page = str(metadata.get_payload())
    assert page.startswith("# retrograd")
    assert "```python" in page
    assert not re.findall(r"\]\((?!https?:|#)[^)]*\)", page)
    assert "<h1" in (markdown.render(page) or "")  # as the index renders it


def test_the_metadata_name_the_systems_and_the_versions_of_python(metadata: Message) -> None:
    classifiers = metadata.get_all("Classifier") or []
    assert "Operating System :: POSIX :: Linux" in classifiers
    least = (metadata["Requires-Python"] or "").removeprefix(">=")
    assert f"Programming Language :: Python :: {least}" in classifiers


@pytest.mark.parametrize("repository", ["", "https://example.org/retrograd"])
def test_one_line_sets_the_addresses_of_the_project(tmp_path: Path, repository: str) -> None:
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    package = tmp_path / "retrograd"
    package.mkdir()
    shutil.copy(ROOT / "retrograd" / "_version.py", package)
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace('repository = ""', f'repository = "{repository}"'))
    command = [sys.executable, "-m", "hatchling", "metadata"]
    found = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert found.get("urls", {}).get("Source", "") == repository
