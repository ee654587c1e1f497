"""Recognises RMS norms by what they compute."""

from __future__ import annotations

import copy
import inspect
import itertools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

import retrograd
from retrograd.compat.dtypes import arithmetic, beside
from retrograd.core.errors import bad_type

EPS_NAMES = ("variance_epsilon", "eps", "epsilon")
GATE_NAMES = ("gate", "z")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTH = 16  # of the rows that a norm without a weight is tried on

Gate = Literal["none", "input", "output"]
Activation = Literal["silu", "sigmoid"]
ACTIVATIONS: tuple[Activation, ...] = ("silu", "sigmoid")


@dataclass(frozen=True)
class Norm:
    """The norm that a module computes, in retrograd's terms.

    Attributes:
        original: its class.
        eps: added to the mean square; None for that of the arithmetic's dtype, as in torch.nn.RMSNorm.
        weighted: whether its weight is used.
        weight_offset: added to the weight.
        group_size: channels that are normalised together; None for all.
        gate: what a gate multiplies.
        gate_optional: whether a call may be without a gate.
        activation: of the gate.
        out_dtypes: dtypes of input and weight -> that of the result.
        arguments: the names of the input, and of the gate where there is one.
    """

    original: type[nn.Module]
    eps: float | None
    weighted: bool
    weight_offset: float
    group_size: int | None
    gate: Gate
    gate_optional: bool
    activation: Activation
    out_dtypes: Mapping[tuple[torch.dtype, torch.dtype], torch.dtype] = field(hash=False)
    arguments: tuple[str, ...]

    def __call__(self, x: Tensor, weight: Tensor | None, gate: Tensor | None = None) -> Tensor:
        """The norm of x."""
        if gate is None and not self.gate_optional:
            raise bad_type(self.original.__name__, "gate", gate, "a torch.Tensor")
        if weight is None and self.weighted:
            raise bad_type(self.original.__name__, "weight", weight, "a torch.Tensor")
        weight_dtype = x.dtype if weight is None else weight.dtype
        out_dtype = self.out_dtypes.get((x.dtype, weight_dtype), x.dtype)  # with float64, all dtypes are float64
        return retrograd.rms_norm(
            x,
            beside(x, weight) if self.weighted else None,
            gate=gate,
            eps=torch.finfo(arithmetic(x)).eps if self.eps is None else self.eps,
            weight_offset=self.weight_offset,
            group_size=self.group_size,
            norm_before_gate=self.gate == "output" and gate is not None,
            gate_activation=self.activation if gate is not None else "silu",
            out_dtype=out_dtype,
        )


def expected_of(kind: type) -> bool:
    """Whether a class is an RMS norm by its name, so that it is worth a word if it computes something else."""
    return "rmsnorm" in kind.__name__.lower()


def possible(kind: type) -> bool:
    """Whether a class may be an RMS norm by its name: T5's are called LayerNorm."""
    other = ("LayerNorm", "L2Norm")
    return expected_of(kind) or (not issubclass(kind, nn.LayerNorm) and kind.__name__.endswith(other))


def recognise(module: nn.Module, kind: type[nn.Module] | None = None) -> Norm | str:
    """The norm that a module computes, by the rules of `kind`, its class; or the reason why it is not replaced."""
    kind = kind or type(module)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weight = tensors.get("weight")  # a buffer where it is fixed
    named = [getattr(module, name) for name in EPS_NAMES if hasattr(module, name)]
    arguments = list(inspect.signature(kind.forward).parameters.values())[1:]
    if "forward" in vars(module):
        return "its forward is replaced already, as accelerate's hooks do: patch the model before"
    if tensors.keys() - {"weight"} or (weight is not None and weight.ndim != 1):
        return "it has more than a weight of one dimension"
    if weight is None and isinstance(module, nn.RMSNorm):
        return "a torch.nn.RMSNorm is replaced only if it has a weight"  # without one nothing checks the rows' width
    if next(module.children(), None) is not None:
        return "it has modules of its own"
    if not named or not isinstance(named[0], float | None):
        return f"it has no number named {' or '.join(EPS_NAMES)}"
    if len(arguments) not in (1, 2) or any(each.name not in GATE_NAMES for each in arguments[1:]):
        return "it takes other tensors beside its input and a gate"
    return _Trial(module, kind, weight, named[0], arguments).norm()


class _Trial:
    """A module tried on random numbers.

    Args:
        module: the module.
        kind: its class.
        weight: its weight, if it has one.
        eps: what it adds to the mean square; None if it depends on the dtype.
        arguments: its argument, and that for a gate if it has one.
    """

    def __init__(
        self,
        module: nn.Module,
        kind: type[nn.Module],
        weight: Tensor | None,
        eps: float | None,
        arguments: list[inspect.Parameter],
    ) -> None:
        self.module, self.kind, self.eps = module, kind, eps
        self.arguments, self.gates = tuple(each.name for each in arguments), arguments[1:]
        self.learned = isinstance(weight, nn.Parameter)
        self.dtypes = (torch.float64, *DTYPES) if eps is None else (torch.float32,)
        width = WIDTH if weight is None else len(weight)
        # The device and the dtype are explicit, so that the defaults do not matter.
        fp32: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
        generator = torch.Generator().manual_seed(0)
        self.weight = None if weight is None else torch.rand(width, generator=generator, **fp32) + 0.5
        # In the smallest rows eps outweighs the squares, so that a wrong one shows.
        small = (torch.finfo(torch.float32).eps if eps is None else eps) ** 0.5
        sizes = torch.tensor([[0.1 * small], [small], [1.0], [30.0]], **fp32)
        # Three dimensions, to tell the last from the others.
        self.x = (torch.randn(4, width, generator=generator, **fp32) * sizes).view(2, 2, width)
        self.gate = torch.randn(2, 2, width, generator=generator, **fp32)

    @torch.no_grad()
    def norm(self) -> Norm | str:
        """The norm, or why there is none."""
        try:
            with torch.autocast("cpu", enabled=False), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of dtypes that it is tried with
                gates = [*([None] if self._runs_without_gate() else []), *([self.gate] if self.gates else [])]
                tries = [self._inputs(dtype, gate) for dtype in self.dtypes for gate in gates]
                expected = [self._original(*inputs) for inputs in tries]
                for norm in self._norms(self._out_dtypes(gates[-1]), gate_optional=gates[0] is None):
                    found = [norm(*inputs) for inputs in tries]
                    if all(_same(a, b) for a, b in zip(found, expected, strict=True)):
                        return norm
        except Exception as error:
            return f"it could not be tried out ({type(error).__name__}: {error})"
        return "it computes something else"

    def _inputs(self, dtype: torch.dtype, gate: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The input, the weight and a gate in this dtype."""
        weight = None if self.weight is None else self.weight.to(dtype)
        return self.x.to(dtype), weight, None if gate is None else gate.to(dtype)

    def _runs_without_gate(self) -> bool:
        if not self.gates:
            return True
        try:
            self._original(self.x, self.weight, None)
        except Exception:
            return False
        return True

    def _out_dtypes(self, gate: Tensor | None) -> dict[tuple[torch.dtype, torch.dtype], torch.dtype]:
        """Dtypes of input and weight -> that of the results."""
        weights = {dtype: None if self.weight is None else self.weight.to(dtype) for dtype in DTYPES}
        pairs = itertools.product(DTYPES, weights.items())
        return {(x, w): self._original(self.x.to(x), weight, gate).dtype for x, (w, weight) in pairs}

    def _original(self, x: Tensor, weight: Tensor | None, gate: Tensor | None) -> Tensor:
        """The results of the module, with another weight."""
        probe = copy.copy(self.module)
        probe.__dict__["_parameters"] = probe.__dict__["_buffers"] = {} if weight is None else {"weight": weight}
        result = self.kind.forward(probe, x, *([] if gate is None else [gate.to(x.dtype)]))
        return result if isinstance(result, Tensor) else torch.empty(0)

    def _norms(
        self, out_dtypes: Mapping[tuple[torch.dtype, torch.dtype], torch.dtype], *, gate_optional: bool
    ) -> Iterator[Norm]:
        """The norms that it may be."""
        width = self.x.shape[-1]
        sizes: list[int | None] = [None]
        if isinstance(size := getattr(self.module, "group_size", None), int) and size != width:
            sizes = [size]
        if isinstance(groups := getattr(self.module, "n_groups", None), int) and groups > 1:
            sizes = [width // groups]
        gates: tuple[tuple[Gate, Activation], ...] = (("none", "silu"),)
        if self.gates:
            gates = tuple(itertools.product(("input", "output"), ACTIVATIONS))
        weights = [] if self.weight is None else [(True, 0.0), (True, 1.0)]
        if not self.learned:
            weights.append((False, 0.0))
        for size, (weighted, offset), (place, name) in itertools.product(sizes, weights, gates):
            yield Norm(
                original=self.kind,
                eps=self.eps,
                weighted=weighted,
                weight_offset=offset,
                group_size=size,
                gate=place,
                gate_optional=gate_optional,
                activation=name,
                out_dtypes=out_dtypes,
                arguments=self.arguments,
            )


def _same(found: Tensor, expected: Tensor) -> bool:
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    # Two orders of the same sum in float32 are apart by some 1e-6, and of 16 bits an original rounds up to three times;
    # another formula is apart by far more.
    return torch.allclose(found, expected, rtol=max(1e-5, 4 * torch.finfo(found.dtype).eps), atol=0)
