"""The addresses of the project in the package's metadata."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Urls(MetadataHookInterface):
    """Adds them where `tool.retrograd.repository` is set."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the URLs."""
        project = tomllib.loads((Path(self.root) / "pyproject.toml").read_text())
        if repository := project["tool"]["retrograd"]["repository"]:
            metadata["urls"] = {
                "Source": repository,
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            }
