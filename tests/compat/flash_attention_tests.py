"""Runs flash-attn's own tests on `retrograd.compat.flash_attn`, a sample of their cases:

    python tests/compat/flash_attention_tests.py FOLDER [cases of each test] [longest sequence]

FOLDER is a checkout of https://github.com/Dao-AILab/flash-attention; the tests need `einops`. They run on the GPU, and
where there is none on the CPU.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from retrograd.compat import flash_attn
from retrograd.compat.flash_attn import bert_padding, flash_attn_interface, layers
from retrograd.compat.flash_attn.layers import rotary

TESTS = (
    "test_flash_attn_qkvpacked",
    "test_flash_attn_varlen_qkvpacked",
    "test_flash_attn_output",
    "test_flash_attn_varlen_output",
    "test_flash_attn_causal",
    "test_flash_attn_varlen_causal",
    "test_flash_attn_splitkv",
    "test_flash_attn_kvcache",
    "test_flash_attn_bwd_overflow",
    "test_flash_attn_bwd_transpose",
    "test_flash_attn_bwd_varlen_overflow",
)
# They repeat a call up to hundreds of times, which takes too long on a CPU.
REPEATING = ("test_flash_attn_race_condition", "test_flash_attn_deterministic", "test_flash_attn_varlen_deterministic")


class OnCpu(TorchFunctionMode):
    """Creates on the CPU what is asked for on "cuda"."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        return function(*args, **kwargs)


def load(folder: Path) -> ModuleType:
    """Their tests, with our modules as flash_attn."""
    if not torch.cuda.is_available():
        cuda: Any = torch.cuda
        cuda.get_device_capability = lambda device=None: (8, 0)
        cuda.get_device_properties = lambda device=None: SimpleNamespace(total_memory=2**40)
        cuda.synchronize = lambda device=None: None
    # What they import to undo their kernels' scaling of probabilities, in `normalize_flash_attn_S`; ours have none.
    internals: Any = flash_attn_interface
    internals._get_block_size_n, internals.USE_TRITON_ROCM = None, False
    for module in (flash_attn, flash_attn_interface, bert_padding, layers, rotary):
        sys.modules[module.__name__.removeprefix("retrograd.compat.")] = module
    spec = importlib.util.spec_from_file_location("test_flash_attn", folder / "tests" / "test_flash_attn.py")
    assert spec is not None
    assert spec.loader is not None
    tests: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    tests.normalize_flash_attn_S = lambda probabilities, *_, **__: probabilities
    return tests


def cases(test: Callable[..., Any], count: int, longest: int) -> Iterator[dict[str, Any]]:
    """A sample of a test's cases without sequences that are too long; the same one in every run."""
    axes = []
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names = [name.strip() for name in mark.args[0].split(",")]
            values = [value if len(names) > 1 else (value,) for value in mark.args[1]]
            named = [dict(zip(names, value, strict=True)) for value in values]
            axes.append([n for n in named if all(s <= longest for name, s in n.items() if "seqlen" in name)])
    drawn = random.Random(0)
    for _ in range(count if all(axes) else 0):
        yield {name: value for axis in axes for name, value in drawn.choice(axis).items()}


def run(test: Callable[..., Any], case: dict[str, Any]) -> str:
    """What came of a case."""
    try:
        with redirect_stdout(StringIO()):
            test(**case)
    except pytest.skip.Exception:
        return "skipped"
    except NotImplementedError as refusal:
        return f"refused: {refusal}"
    except Exception as error:
        print(f"  {case}\n    {type(error).__name__}: {str(error).splitlines()[:1]}")
        return "failed"
    return "passed"


def main(folder: str, count: str = "20", longest: str = "256") -> int:
    """Print the results of each test; 1 where a case failed."""
    tests = load(Path(folder))
    total: Counter[str] = Counter()
    for name in TESTS + (REPEATING if torch.cuda.is_available() else ()):
        test = getattr(tests, name)
        print(name, flush=True)
        found = Counter(run(test, case) for case in cases(test, int(count), int(longest)))
        print("  " + ", ".join(f"{number} {what}" for what, number in sorted(found.items())), flush=True)
        total += found
    print("all: " + ", ".join(f"{number} {what}" for what, number in sorted(total.items())))
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    with nullcontext() if torch.cuda.is_available() else OnCpu():
        sys.exit(main(*sys.argv[1:]))
