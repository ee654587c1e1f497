"""What mkdocs does with the pages: files of the repository as pages, links among them, and pictures of results."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["retrograd"]["repository"]
RESULTS = ("benchmarks/results/h200", "benchmarks/results/h100-80gb-hbm3")
OPS = [path.parent.name for path in sorted((ROOT / "retrograd" / "ops").glob("*/README.md"))]
# Files of the repository -> where they stand in the site.
PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "retrograd/compat/README.md": "compat.md",
    "retrograd/train/README.md": "train.md",
    "retrograd/distributed/README.md": "distributed.md",
    **{f"retrograd/ops/{op}/README.md": f"derivations/{op}.md" for op in OPS},
}
EXAMPLES = {f"examples/{path.name}": f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.py"))}
PICTURES = {
    str(path.relative_to(ROOT)): f"results/{path.parent.name}/{path.name}"
    for folder in RESULTS
    for path in sorted((ROOT / folder).glob("*.png"))
}
SHIM = "https://unpkg.com/iframe-worker/shim"
HEADING = re.compile(r'<h(\d) id="[^"]+"(?=[^>]*>(?:(?!</h\1>).)*<a class="headerlink" href="#([^"]+)")', re.DOTALL)
NAME = re.compile(r'(<a class="autorefs[^"]*"(?: title="[^"]*")? href="#)[^"]+(">(.*?)</a>)', re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?!https?:|#|mailto:)[^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
# Markdown's dialects differ: in this one a list or a table begins after an empty line alone, also behind a fence.
BLOCK = re.compile(r"^((?![ ]*(?:[-|>]|\d+\.))[^\n]+\n|(?<!.)\n)(?=- |\| |1\. )", re.MULTILINE | re.DOTALL)


@event_priority(100)
def on_config(config: Any) -> Any:
    """Let print-site stand last among the plugins: it warns where these hooks stand behind it."""
    dict.__setitem__(config.plugins, "print-site", dict.pop(config.plugins, "print-site"))
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages and pictures that stand elsewhere in the repository."""
    for path, uri in (PAGES | PICTURES).items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for path, uri in EXAMPLES.items():
        text = f"# {Path(path).name}\n\n```python\n{(ROOT / path).read_text()}```\n"
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are within the site; those to other files are only their text while there is no address."""
    if page.file.src_uri == PAGES["README.md"]:
        markdown = re.sub(r"\A# .*", "# The README", markdown)  # the start page has the library's name as its title
    parts = FENCE.split(markdown)
    texts = [LINK.sub(lambda match: _link(match, page.file), BLOCK.sub(r"\1\n", text)) for text in parts[::2]]
    parts[::2] = texts
    return "".join(parts)


@event_priority(-100)
def on_post_build(config: Any, **_: Any) -> None:
    """Let search run from files without a network: its shim is one of the site's own files. Mend links to ids on the
    page that shows everything: print-site puts a page's name before the link of a heading, but not before every
    heading's id, and leads names to any id that has their letters, `int` to that of "print"."""
    for path in Path(config.site_dir).rglob("*.html"):
        up = os.path.relpath(config.site_dir, path.parent)
        page = path.read_text().replace(SHIM, f"{up}/assets/iframe-worker.js")
        path.write_text(_with_names_linked(HEADING.sub(r'<h\1 id="\2"', page)))


def _with_names_linked(page: str) -> str:
    """Names lead to the ids that end with them; those without one, such as `torch.Tensor`, become plain text."""
    ids = {found.rpartition(".")[2]: found for found in re.findall(r'id="([^"]+\.[^"]+)"', page)}
    return NAME.sub(lambda match: f"{match[1]}{ids[match[3]]}{match[2]}" if match[3] in ids else match[3], page)


def _link(match: re.Match[str], file: File) -> str:
    """A link of a page."""
    mark, text, target = match.groups()
    path, _, anchor = target.partition("#")
    full = Path(os.path.normpath(Path(file.abs_src_path or "").parent / path))
    if not full.is_relative_to(ROOT):
        return match[0]
    inside = str(full.relative_to(ROOT))
    anchor = "#" * bool(anchor) + anchor
    uri = inside.removeprefix("docs/") if inside.startswith("docs/") else (PAGES | PICTURES | EXAMPLES).get(inside)
    if uri:
        place = os.path.relpath(uri, Path(file.src_uri).parent)
        here = f"{mark}[{text}]({place}{anchor})"
        return f"[{here}]({place})" if mark else here  # a picture opens alone
    if not full.exists():
        raise FileNotFoundError(f"{file.src_uri} links to {inside}, which is not there")
    return f"[{text}]({REPOSITORY}/blob/main/{inside}{anchor})" if REPOSITORY else text
