"""The lower bounds of pyproject.toml. As a script: those that `make oldest` installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
USED = ("torch", "cli", "jax")  # the extras that a user's program needs


def floors() -> dict[str, str]:
    """Name -> the least version, of what the library and its command line need."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    wanted = project["dependencies"] + [one for extra in USED for one in project["optional-dependencies"][extra]]
    wanted = [one for one in wanted if not one.startswith("retrograd[")]
    found = [re.fullmatch(r"(\w+)>=([\d.]+)(; .*)?", one) for one in wanted]
    assert all(found), wanted
    return {match[1]: match[2] for match in found if match}


if __name__ == "__main__":
    print(*(f"{name}=={version}" for name, version in floors().items() if name not in ("torch", "triton")))
