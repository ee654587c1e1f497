"""Builds the CUDA extensions of peers that are distributed as sources, with nvcc and PyTorch's build tools.

python benchmarks/build_peers.py OUT [--mamba TREE] [--causal-conv1d TREE] [--arch 9.0]. A TREE is an unpacked source
tree of state-spaces/mamba or Dao-AILab/causal-conv1d; it is not changed. OUT then holds the extensions' modules, and
belongs on PYTHONPATH together with the packages themselves. It needs no GPU, but the Python and PyTorch that will run
them, nvcc of PyTorch's CUDA version, ninja, and about eight minutes of one core.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# The flags of the peers' own setup.py, except those that only print.
COMMON = ["-O3", "-std=c++17", "--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math"]
OPERATORS = [
    f"-U__CUDA_NO_{name}__"
    for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_OPERATORS", "BFLOAT16_CONVERSIONS",
                 "BFLOAT162_OPERATORS", "BFLOAT162_CONVERSIONS")
]  # fmt: skip


def build(name: str, csrc: Path, out: Path) -> None:
    """Compile all sources in a folder, and link them into a module in `out`."""
    from torch.utils.cpp_extension import load

    folder = out / f"build_{name}"
    folder.mkdir(parents=True, exist_ok=True)
    load(
        name,
        sources=[str(path) for path in sorted(csrc.resolve().iterdir()) if path.suffix in (".cpp", ".cu")],
        extra_include_paths=[str(csrc.resolve())],
        extra_cflags=["-O3", "-std=c++17"],
        extra_cuda_cflags=[*COMMON, *OPERATORS],
        build_directory=str(folder),
        verbose=True,
    )
    (folder / f"{name}.so").replace(out / f"{name}.so")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mamba", type=Path)
    parser.add_argument("--causal-conv1d", type=Path)
    parser.add_argument("--arch", default="9.0")
    arguments = parser.parse_args()
    os.environ["TORCH_CUDA_ARCH_LIST"] = arguments.arch
    out = arguments.out.resolve()
    if arguments.mamba:
        build("selective_scan_cuda", arguments.mamba / "csrc" / "selective_scan", out)
    if arguments.causal_conv1d:
        build("causal_conv1d_cuda", arguments.causal_conv1d / "csrc", out)


if __name__ == "__main__":
    main()
