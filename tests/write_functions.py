"""Write the modules of public functions from the ops' declarations; run by `make functions`."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any


class Stub(ModuleType):
    """Replaces a module that may be missing or broken."""

    __all__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return None


STUBS = {name: Stub(name) for name in ("retrograd.ops.torch_functions", "retrograd.ops.jax_functions")}
if __name__ == "__main__":
    sys.modules.update(STUBS)

from retrograd.opinfo.writer import Face  # noqa: E402
from retrograd.ops.functions import FILES, FOLDER, source  # noqa: E402


def written(face: Face) -> str:
    """The formatted source of the module."""
    command = [sys.executable, "-m", "ruff", "--quiet"]
    name = ["--stdin-filename", str(FOLDER / FILES[face]), "-"]
    text = source(face)
    fixed = [*command, "check", "--fix-only", "--select", "I,F401,UP", *name]
    for step in (fixed, [*command, "format", *name]):
        text = subprocess.run(step, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    for face, name in FILES.items():
        (FOLDER / name).write_text(written(face))
