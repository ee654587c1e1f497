"""The lower version bounds in pyproject.toml. As a script, print those that `make oldest` installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
USED = ("torch", "cli", "jax")  # the extras that a user's program needs


def floors() -> dict[str, str]:
    """Package name -> lowest version, for the library and its command line."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    requirements = project["dependencies"] + [
        requirement for extra in USED for requirement in project["optional-dependencies"][extra]
    ]
    requirements = [requirement for requirement in requirements if not requirement.startswith("retrograd[")]
    matches = [re.fullmatch(r"(\w+)>=([\d.]+)(; .*)?", requirement) for requirement in requirements]
    assert all(matches), requirements
    return {match[1]: match[2] for match in matches if match}


if __name__ == "__main__":
    print(*(f"{name}=={version}" for name, version in floors().items() if name not in ("torch", "triton")))
