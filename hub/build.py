"""Builds retrograd's ops as a kernel of the Hugging Face Hub, from the sources of the package.

    python hub/build.py OUT

writes OUT, the content of a kernel repository: a card, and the build variant `build/torch-universal`, a Python package
that needs nothing but torch with its Triton. It runs in the environment of development.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from rewrite import rewritten
from sources import NAME, needed

from retrograd._version import __version__
from retrograd.ops import functions

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / NAME
VARIANT = Path("build", "torch-universal")
OPS = ("rms_norm", "linear_scan", "causal_conv1d", "selective_scan", "ssd")


def main() -> None:
    """Write the repository."""
    if len(sys.argv) != 2:
        raise SystemExit("expected one argument: the folder to write")
    out = Path(sys.argv[1])
    if out.is_dir() and any(out.iterdir()):
        raise SystemExit(f"{out} has files, expected a folder that is new or empty")
    texts = needed(PACKAGE, entries())
    identifier = f"{NAME}_{digest(texts)}"
    folder = out / VARIANT
    for module, text in texts.items():
        path = folder.joinpath(*module.split(".")).with_suffix(".py") if module else folder / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rewritten(module, text, identifier))
    for package in {parent for path in folder.rglob("*.py") for parent in path.relative_to(folder).parents}:
        if not (init := folder / package / "__init__.py").exists():
            init.write_text(docstring(PACKAGE / package / "__init__.py"))
    metadata = json.dumps(described(folder, identifier), indent=2)
    (folder / "metadata.json").write_text(metadata + "\n")
    shutil.copy(HERE / "README.md", out)
    shutil.copy(HERE.parent / "LICENSE", out)
    print(f"{folder}: {identifier}, {len(texts)} modules")


def entries() -> dict[str, str]:
    """Name -> source of the modules that nothing else imports, and of those that are written for the package."""
    own = {path.stem.removeprefix("__init__"): path.read_text() for path in (HERE / "package").glob("*.py")}
    own["ops.torch_functions"] = public_functions()
    for op in OPS:  # `core/op.py` imports these by name
        for path in (PACKAGE / "ops" / op).rglob("*.py"):
            if path.stem in ("portable", "launches"):
                own[".".join(path.relative_to(PACKAGE).with_suffix("").parts)] = path.read_text()
    return own


def public_functions() -> str:
    """The module of the public functions, with those of these ops alone."""
    functions.NAMES = OPS  # type: ignore[assignment]
    text = functions.source(functions.TORCH)
    ruff = [sys.executable, "-m", "ruff", "--quiet"]
    name = ["--stdin-filename", str(PACKAGE / "ops" / functions.FILES[functions.TORCH]), "-"]
    for step in ([*ruff, "check", "--fix-only", "--select", "I,F401,UP", *name], [*ruff, "format", *name]):
        text = subprocess.run(step, input=text, capture_output=True, text=True, check=True).stdout
    return text


def docstring(path: Path) -> str:
    """A package's file with a line that says what it is: what it imports in retrograd may not be in the copy."""
    summary, _, _ = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")
    return f'"""{summary}"""\n'


def digest(texts: dict[str, str]) -> str:
    """A name for these sources and for how they are rewritten."""
    found = hashlib.sha256((HERE / "rewrite.py").read_bytes())
    for module, text in sorted(texts.items()):
        found.update(f"{module}\0{text}\0".encode())
    return found.hexdigest()[:12]


def described(folder: Path, identifier: str) -> dict[str, object]:
    """What the package `kernels` reads of a build variant."""
    hashes = {
        str(path.relative_to(folder)): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {
        "id": identifier,
        "name": NAME,
        "version": int(__version__.partition(".")[0]),  # the repository's branch is `v` and this number
        "license": "MIT",
        "kernels-minver": "0.17.0",
        "python-depends": [],
        "backend": {"type": "cuda"},  # one has to be named; a universal variant is loaded on every one
        "digest": {"algorithm": "sha256", "files": hashes},
    }


if __name__ == "__main__":
    main()
