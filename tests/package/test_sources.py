"""What the sources say of the repository's files."""

from __future__ import annotations

import re
from pathlib import Path

import retrograd

PACKAGE = Path(retrograd.__file__).parent


def test_a_readme_that_a_source_names_is_at_that_path_from_it() -> None:
    named = [
        (source, path)
        for source in PACKAGE.rglob("*.py")
        for path in re.findall(r"[\w./]*README\.md", source.read_text())
    ]
    assert named
    assert not [f"{source}: {path}" for source, path in named if not (source.parent / path).is_file()]
