"""`retrograd info`: installed versions, devices, and the path of each op on them."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.table import Column, Table

from retrograd.bench.environment import versions
from retrograd.core.arch import Arch
from retrograd.core.spec import Pass, arguments, options
from retrograd.core.torch.launch import arch_of
from retrograd.opinfo.info import OpInfo, spec_of
from retrograd.ops import infos

from .console import has_jax, named_info, show, table

PACKAGES = ("torch", "triton", "jax", "jaxlib", "numpy")


def info(
    op: Annotated[str | None, typer.Argument(help="An op: shows its arguments and options instead.")] = None,
) -> None:
    """Show versions, devices, and the path of each op on them; or what an op takes."""
    if op is not None:
        show(declaration(named_info(op)))
        return
    installed = table("Versions", "package", "version")
    installed.add_row("python", platform.python_version())
    for name, version in versions(PACKAGES).items():
        installed.add_row(name, version)
    show(installed)

    devices = list(torch_devices())
    if has_jax():
        devices += jax_devices()
    listed = table("Devices", "framework", Column("device"), "architecture")
    for framework, device, arch, _ in devices:
        listed.add_row(framework, device, arch.name if arch else "-")
    show(listed)

    paths = table("Ops", "op", "framework", Column("device"), "path", Column("why"))
    for op in infos.NAMES:
        for framework, device, arch, why in devices:
            paths.add_row(op, framework, device, kernels_of(op, arch) if arch else "portable", why)
    show(paths)


def declaration(info: OpInfo) -> Table:
    """The arguments and options of an op, from its declaration."""
    assert info.op is not None
    listed = table(f"{info.name}", "name", "shape or type", "default", Column("meaning"))
    for name, argument in arguments(info.op.call).items():
        listed.add_row(
            name, argument.shape, "None" if argument.optional else "required", escape(" ".join(argument.doc.split()))
        )
    for name, option in options(info.op.call).items():
        listed.add_row(name, option.kind, repr(option.default), escape(" ".join(option.doc.split())))
    return listed


def kernels_of(op: str, arch: Arch) -> str:
    """The implementations that run some of an op's cases, in order of preference."""
    info = infos.info(op)
    assert info.op is not None
    specs = [spec_of(info.op, case) for case in info.cases]
    passes: tuple[Pass, ...] = ("fwd", "bwd")
    run = {info.op.implementation(spec, arch, which) for spec in specs for which in passes}
    return ", ".join(one.name for one in info.op.implementations if one in run)


def torch_devices() -> Iterator[tuple[str, str, Arch | None, str]]:
    """PyTorch's devices: framework, name, architecture, and the reason for the path of the ops there."""
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        yield "torch", f"cuda:{index} {torch.cuda.get_device_name(index)}", *judged(arch_of(device))
    yield "torch", f"cpu {platform.machine()}", None, "Triton kernels run on a GPU only"


def jax_devices() -> list[tuple[str, str, Arch | None, str]]:
    """JAX's devices, in the same form. Imports jax."""
    import jax

    from retrograd.core.jax.launch import arch_of_jax

    found: list[tuple[str, str, Arch | None, str]] = []
    for device in jax.local_devices():
        name = f"{device.platform}:{device.id} {device.device_kind}"
        if device.platform == "gpu":
            found.append(("jax", name, *judged(arch_of_jax())))
        else:
            found.append(("jax", name, None, "Triton kernels run on a GPU only"))
    return found


def judged(arch: Arch | None) -> tuple[Arch | None, str]:
    """The architecture, and the reason why kernels run on it or not."""
    if arch is not None:
        return arch, f"the kernels are built for {arch.name}; float64 is portable"
    if not versions(["triton"]).keys() - {"retrograd"}:
        return None, "triton is not installed"
    return None, "no kernel is built for this GPU (NVIDIA sm_80 and later, AMD gfx942 and gfx950)"
