"""Runs the tests of flash-linear-attention's gated delta rules on `retrograd.compat.fla`:

    python tests/compat/fla_tests.py FOLDER [longest sequence]

FOLDER is a checkout of https://github.com/fla-org/flash-linear-attention; the tests need `einops`. They run on the GPU,
and where there is none on the CPU, where by default those of more than 256 steps are left out.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from retrograd.compat.fla.ops import gated_delta_rule, kda

OURS = {
    name: getattr(module, name)
    for module, names in (
        (gated_delta_rule, ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")),
        (kda, ("chunk_kda", "fused_recurrent_kda")),
    )
    for name in names
}
FILES = ("test_gdn.py", "test_kda.py")
# Those that do not call these functions, but fla's kernels and choices behind them.
OF_THEIR_KERNELS = (
    "test_chunk_gated_delta_rule_fwd_h_blackwell_triton_guard",
    "test_naive_chunk",
    "test_chunk_invalid_chunk_size",
    "test_gate",
    "test_prepare_wy_repr_bwd_no_g",
    "test_flash_qla",
    "test_flash_kda",
    "test_fused_recurrent_vllm_decode",
    "test_triton_ascend",
    "test_chunk_return_intermediate_states",
)


class Ours:
    """Their tests with our functions, but for the longest."""

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        kept = [item for item in items if self.takes(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
        for module in {item.module for item in kept}:
            for name in OURS.keys() & vars(module).keys():
                setattr(module, name, OURS[name])

    def takes(self, item: Any) -> bool:
        """Whether a test is of these functions, and its sequence short enough."""
        if item.name.startswith(OF_THEIR_KERNELS):
            return False
        numbers = getattr(item, "callspec", None)
        given = numbers.params if numbers else {}
        return max(given.get("T", 0), *given.get("cu_seqlens", [0])) <= self.longest


def main(folder: str, longest: str = "") -> int:
    """pytest's status."""
    limit = int(longest) if longest else (2**31 if torch.cuda.is_available() else 256)
    sys.path.insert(0, folder)
    if not torch.cuda.is_available():
        utils: Any = importlib.import_module("fla.utils")
        utils.device = "cpu"  # where it finds no GPU it says "cuda"
    files = [str(Path(folder) / "tests" / "ops" / name) for name in FILES]
    options = ["-q", "-rf", "-p", "no:cacheprovider", "--noconftest", "--rootdir", folder]
    return pytest.main([*options, *files], plugins=[Ours(limit)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
