"""Blocks of Python in markdown: each runs as it stands, and prints what its comments say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)  # what a line prints stands behind it

# Every block runs in a process of its own, forked from one that has imported what takes long to import.
RUN = """
import json, os, sys, traceback
import torch, retrograd, transformers.modeling_utils
for name, source in json.load(sys.stdin):
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(write, 1)
        try:
            exec(compile(source, name, "exec"), {"__name__": "__main__"})
        except BaseException:
            print(traceback.format_exc())
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as output:
        print(json.dumps([name, output.read()]))
    os.wait()
"""


def check_blocks(paths: Iterable[Path]) -> None:
    """Run every block of these files, and compare what it prints."""
    given = {
        f"{path.relative_to(ROOT)}, block {place}": source
        for path in paths
        for place, source in enumerate(BLOCK.findall(path.read_text()), 1)
    }
    command = [sys.executable, "-c", RUN]
    ran = subprocess.run(command, input=json.dumps(list(given.items())), capture_output=True, text=True, check=True)
    printed = dict(json.loads(line) for line in ran.stdout.splitlines())
    assert printed.keys() == given.keys()
    for name, source in given.items():
        assert "Traceback" not in printed[name], f"{name}\n{printed[name]}"
        if expected := PRINTED.findall(source):
            assert printed[name].splitlines() == expected, name
