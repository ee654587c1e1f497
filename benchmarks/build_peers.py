"""Builds the CUDA extensions of peers that are distributed as sources, with nvcc and PyTorch's build tools.

python benchmarks/build_peers.py OUT [--mamba TREE] [--causal-conv1d TREE] [--arch 9.0] [--bfloat16]. A TREE is an
unpacked source tree of state-spaces/mamba or Dao-AILab/causal-conv1d; it is not changed. OUT then holds the extensions'
modules, and belongs on PYTHONPATH together with the packages themselves. It needs no GPU, but the Python and PyTorch
that will run them, nvcc of PyTorch's CUDA version, ninja, and ten minutes on several cores. With --bfloat16 the
kernels for other dtypes are left out, and it takes a minute and a half on 16 cores.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from pathlib import Path

# The flags of the peers' own setup.py, except those that only print.
COMMON = ["-O3", "-std=c++17", "--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math"]
OPERATORS = [
    f"-U__CUDA_NO_{name}__"
    for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_OPERATORS", "BFLOAT16_CONVERSIONS",
                 "BFLOAT162_OPERATORS", "BFLOAT162_CONVERSIONS")
]  # fmt: skip


# Of a module's kernels the types of inputs and weights that models in bf16 need, as C++ and as PyTorch's enumeration.
INPUTS = ("at::BFloat16", "BFloat16")
WEIGHTS = {"selective_scan_cuda": ("float", "Float"), "causal_conv1d_cuda": INPUTS}
MACRO = re.compile(r"#define DISPATCH_(ITYPE|WTYPE)_(\w+)\((\w+), NAME, \.\.\.\).*?[^\\]\n", re.DOTALL)


def only_bfloat16(name: str, csrc: Path) -> None:
    """Leave out of a copy of a module's sources what is for other dtypes."""
    kept = f"<{INPUTS[0]}, {WEIGHTS[name][0]}>"

    def one_branch(macro: re.Match[str]) -> str:
        kind, types, argument = macro.groups()
        alias, (own, scalar) = ("input_t", INPUTS) if kind == "ITYPE" else ("weight_t", WEIGHTS[name])
        return (
            f"#define DISPATCH_{kind}_{types}({argument}, NAME, ...) if ({argument} == at::ScalarType::{scalar}) "
            f'{{ using {alias} = {own}; __VA_ARGS__(); }} else {{ AT_ERROR(NAME, ": not built for this dtype"); }}\n'
        )

    for path in csrc.glob("*.cpp"):
        path.write_text(MACRO.sub(one_branch, path.read_text()))
    for path in csrc.glob("*.cu"):
        lines = path.read_text().splitlines()
        kernels = [line for line in lines if line.startswith("template void")]
        left_out = [line for line in kernels if kept not in line]
        path.write_text("\n".join(line for line in lines if line not in left_out))
        if left_out == kernels:
            path.unlink()


def build(name: str, csrc: Path, out: Path, bfloat16: bool) -> None:
    """Compile all sources in a folder, and link them into a module in `out`."""
    from torch.utils.cpp_extension import load

    folder = out / f"build_{name}"
    csrc = shutil.copytree(csrc, folder / "csrc", dirs_exist_ok=True)
    if bfloat16:
        only_bfloat16(name, csrc)
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
    parser.add_argument("--bfloat16", action="store_true")
    arguments = parser.parse_args()
    os.environ["TORCH_CUDA_ARCH_LIST"] = arguments.arch
    out = arguments.out.resolve()
    if arguments.mamba:
        build("selective_scan_cuda", arguments.mamba / "csrc" / "selective_scan", out, arguments.bfloat16)
    if arguments.causal_conv1d:
        build("causal_conv1d_cuda", arguments.causal_conv1d / "csrc", out, arguments.bfloat16)


if __name__ == "__main__":
    main()
