"""What of a loaded model runs on retrograd, and why the rest does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from retrograd.core.errors import bad_type

from .stand_ins import PACKAGES

KINDS = ("scan", "attention", "norm")
CONVOLUTIONS = {"causal_conv1d_fn", "causal_conv1d_update"}


class Line(NamedTuple):
    """What is said of the modules of one class.

    Attributes:
        kind: of `KINDS`.
        name: of the class.
        modules: how many there are.
        ours: whether they run on retrograd.
        why: by what, or what is missing.
    """

    kind: str
    name: str
    modules: int
    ours: bool
    why: str


@dataclass(frozen=True)
class Report:
    """The lines about a model; printed, a table."""

    lines: tuple[Line, ...]

    def __str__(self) -> str:
        rows = [
            (line.kind, f"{line.modules} {line.name}", "yes" if line.ours else "no", line.why) for line in self.lines
        ]
        table = [("layer", "modules", "on retrograd", ""), *rows]
        widths = [max(len(row[column]) for row in table) for column in range(3)]
        padded = ("  ".join((*(text.ljust(w) for text, w in zip(row, widths, strict=False)), row[3])) for row in table)
        return "\n".join(text.rstrip() for text in padded)


def report(model: nn.Module) -> Report:
    """What of a model of transformers runs on retrograd: its scans and convolutions, its attention, its norms.

    Args:
        model: the model, loaded.

    Returns:
        A line for each class of layers and each reason; `print` shows them as a table.

    Raises:
        TypeError: if the model is no module.

    Example:
        >>> import transformers
        >>> from retrograd.compat import report
        >>> from retrograd.compat.transformers import patch, register
        >>> config = transformers.LlamaConfig(
        ...     vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> model = patch(transformers.AutoModelForCausalLM.from_config(config, attn_implementation=register()))
        >>> print(report(model))
        layer      modules           on retrograd
        attention  1 LlamaAttention  yes           attn_implementation is 'retrograd'
        norm       3 LlamaRMSNorm    yes           patched
    """
    if not isinstance(model, nn.Module):
        raise bad_type("report", "model", model, "a torch.nn.Module")
    counts: dict[Line, int] = {}
    for module in model.modules():
        if (line := _line(module)) is not None:
            counts[line] = counts.get(line, 0) + 1
    found = (line._replace(modules=count) for line, count in counts.items())
    return Report(tuple(sorted(found, key=lambda line: (KINDS.index(line.kind), line.name, line.why))))


def _line(module: nn.Module) -> Line | None:
    """The line about a module, if it is a layer of one of the kinds."""
    name = type(module).__name__
    if hasattr(module, "A_log"):
        return Line("scan", name, 1, *scan_of(module))
    if "Attention" in name and not any("Attention" in type(child).__name__ for child in module.children()):
        return Line("attention", name, 1, *_attention(module))
    if "Norm" in name and next(module.children(), None) is None:
        return _norm(module)
    return None


def scan_of(module: nn.Module) -> tuple[bool, str]:
    """Whether the functions that a mixer's file looked up at its import are retrograd's."""
    kind = getattr(type(module), "original", type(module))  # of a layer that is patched
    if kind.__module__.startswith("retrograd."):
        return True, "a layer of retrograd"
    functions = dict(_looked_up(inspect.unwrap(kind.forward).__globals__))
    if not functions:
        return False, "its file looks for no package"
    others = sorted(name for name, function in functions.items() if not function.__module__.startswith("retrograd."))
    if others:
        return False, f"{', '.join(others)}: call retrograd.compat.install() before the model is imported"
    if functions.keys() <= CONVOLUTIONS:
        return False, f"its convolution alone: {', '.join(sorted(functions))}"
    from .transformers.exporting import kernels_stay_where_compiled

    compiled = "" if kernels_stay_where_compiled() else "; where compiled, see retrograd.compat.transformers.patch"
    return True, ", ".join(sorted(functions)) + compiled


def _looked_up(names: dict[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of a file that stand for those of the packages, by the packages' names, and what they call."""
    for function in names.values():
        if inspect.isfunction(function):
            known = inspect.getclosurevars(function).nonlocals if "package" in function.__code__.co_freevars else {}
            if known.get("package") in PACKAGES:
                yield known["func_name"], known["implementation"]


def _forward(module: nn.Module) -> Any:
    """The function that computes a module's results, without its decorators."""
    return inspect.unwrap(type(module).forward)


def _attention(module: nn.Module) -> tuple[bool, str]:
    """Whether a layer of attention calls the function that is registered as retrograd's."""
    chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if "ALL_ATTENTION_FUNCTIONS" not in _forward(module).__code__.co_names:
        return False, "its class computes attention by itself"
    if chosen == "retrograd":
        return True, "attn_implementation is 'retrograd'"
    return False, f"attn_implementation is {chosen!r}: see retrograd.compat.transformers.register"


def _norm(module: nn.Module) -> Line:
    """Whether a norm is patched, or could be."""
    from .transformers.norms import RMSNorm
    from .transformers.recognition import Norm, possible, recognise

    if isinstance(module, RMSNorm):
        return Line("norm", module._retrograd_norm.original.__name__, 1, True, "patched")
    name = type(module).__name__
    found: Norm | str = recognise(module) if possible(type(module)) else "it is no RMS norm by its name"
    why = "see retrograd.compat.transformers.patch" if isinstance(found, Norm) else found
    return Line("norm", name, 1, False, why)
