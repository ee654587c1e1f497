"""Registers and removes stand-ins for the packages `mamba_ssm`, `causal_conv1d` and `fla`."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import warnings
from types import ModuleType

PACKAGES = ("causal_conv1d", "fla", "mamba_ssm")
# Names that modules of transformers have for the functions they look up at import.
LOOKED_UP = {
    "causal_conv1d_fn",
    "chunk_kimi_delta_attention",
    "mamba_selective_scan",
    "mamba2_chunk_scan",
    "torch_chunk_gated_delta_rule",
}

# Package -> the entries of sys.modules that its stand-in replaced.
_replaced: dict[str, dict[str, ModuleType]] = {}


def install(*, force: bool = False) -> tuple[str, ...]:
    """Let imports of `mamba_ssm`, `causal_conv1d` and `fla` find retrograd's functions where they are missing.

    Libraries that look for these packages then run on retrograd's kernels, or on its portable path without a
    GPU: in transformers 5.15 and later the models of Mamba's and of Mamba-2's family, those of gated delta rules, and
    the convolutions of others.

    A library decides when it is imported, so call this first. A model of transformers whose module is already
    imported keeps its functions, and a warning names the module.

    Args:
        force: also replace a package that is really installed; by default it is left alone.

    Returns:
        The packages that now have a stand-in.

    Example:
        >>> import retrograd.compat
        >>> retrograd.compat.install()
        ('causal_conv1d', 'fla', 'mamba_ssm')
        >>> from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
        >>> selective_scan_fn.__module__
        'retrograd.compat.mamba_ssm.ops.selective_scan_interface'
        >>> retrograd.compat.uninstall()
    """
    new = [name for name in PACKAGES if name not in _replaced and (force or not _is_installed(name))]
    stand_ins = [_stand_ins(name) for name in (*_replaced, *new)]
    _replaced.update({name: _take(name) for name in new})
    for modules in stand_ins:  # those of an earlier call too: they may have been removed from sys.modules
        sys.modules.update(modules)
    if new:
        _warn_of_models_imported_before()
    return tuple(_replaced)


def uninstall() -> None:
    """Undo `install`: `sys.modules` is restored. Functions that were looked up meanwhile stay in use."""
    while _replaced:
        name, modules = _replaced.popitem()
        _take(name)
        sys.modules.update(modules)


def _is_installed(package: str) -> bool:
    """Whether a package of this name is imported, or could be."""
    if sys.modules.get(package) is not None:
        return True
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a mere directory of this name on the path has no origin


def _stand_ins(package: str) -> dict[str, ModuleType]:
    """Our modules, by the names that they replace."""
    own = importlib.import_module(f"{__package__}.{package}")
    names = [info.name for info in pkgutil.walk_packages(own.__path__, f"{own.__name__}.")]
    prefix = f"{__package__}."
    return {name.removeprefix(prefix): importlib.import_module(name) for name in (own.__name__, *names)}


def _take(package: str) -> dict[str, ModuleType]:
    """Remove a package and its modules from `sys.modules`, and return them."""
    names = [name for name in list(sys.modules) if name == package or name.startswith(f"{package}.")]
    return {name: sys.modules.pop(name) for name in names}


def _warn_of_models_imported_before() -> None:
    late = [
        name
        for name, module in list(sys.modules.items())  # a copy, since other threads may import meanwhile
        if name.startswith("transformers.models.") and not LOOKED_UP.isdisjoint(getattr(module, "__dict__", ()))
    ]
    if late:
        warnings.warn(
            "retrograd.compat.install() came after the import of modules that have already looked for the packages "
            f"and keep what they found: {', '.join(sorted(late))}. Call it before they are imported.",
            RuntimeWarning,
            stacklevel=3,
        )
