"""The RMS norms of transformers on retrograd's rms_norm."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn

from retrograd.core.errors import bad_type, bad_value

from .classes import Replacement, replacing
from .recognition import Norm, expected_of, possible, recognise


class RMSNorm(Replacement):
    """A norm on `retrograd.rms_norm`, with the constructor of the original.

    A module that turns out to compute something else becomes one of the original class again.
    """

    _retrograd_norm: Norm

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        norm = recognise(self, self.original)
        if isinstance(norm, Norm):
            self._retrograd_norm = norm
        else:
            self.__class__ = self.original  # type: ignore[assignment]

    def forward(self, *args: Tensor | None, **kwargs: Tensor | None) -> Tensor:
        """The norm of the last dimension; arguments have the names that the original gives them."""
        norm = self._retrograd_norm
        given = {**dict(zip(norm.arguments, args, strict=False)), **kwargs}
        if len(args) > len(norm.arguments) or not given.keys() <= set(norm.arguments):
            raise TypeError(f"{norm.original.__name__}: arguments are {', '.join(norm.arguments)}")
        x, *gates = (given.get(name) for name in norm.arguments)
        if x is None:
            raise bad_type(norm.original.__name__, norm.arguments[0], x, "a torch.Tensor")
        return norm(x, getattr(self, "weight", None), *gates)

    def extra_repr(self) -> str:
        """Shape, eps, offset, gate, and the original class."""
        norm, weight = self._retrograd_norm, getattr(self, "weight", None)
        shape = () if weight is None else tuple(weight.shape)
        gate = "" if norm.gate == "none" else f"{norm.activation} gate of its {norm.gate}, "
        groups = "" if norm.group_size is None else f"groups of {norm.group_size}, "
        return f"{shape}, eps={norm.eps}, offset={norm.weight_offset}, {groups}{gate}was {norm.original.__name__}"

    def _get_name(self) -> str:
        return "RMSNorm"


def replace_norms(model: nn.Module) -> str:
    """Replace the RMS norms of a model; why others stay, as a text."""
    found: dict[nn.Module, Norm] = {}
    left: dict[tuple[str, str], list[str]] = {}  # class and reason -> names of modules
    for name, module in model.named_modules():
        kind = type(module)
        if not isinstance(module, RMSNorm) and possible(kind):
            norm = recognise(module)
            if isinstance(norm, Norm):
                found[module] = norm
            elif expected_of(kind):
                left.setdefault((kind.__name__, norm), []).append(name)
    for module, norm in found.items():
        module._retrograd_norm = norm  # type: ignore[assignment]
        module.__class__ = replacing(RMSNorm, norm.original)
    return "; ".join(
        f"{kind} ({', '.join(names[:2])}; {len(names)} in all): {why}" for (kind, why), names in left.items()
    )


def restore_norms(model: nn.Module) -> None:
    """Undo `replace_norms`."""
    for module in model.modules():
        if isinstance(module, RMSNorm):
            del module._retrograd_norm
            module.restore()


def register_norms(*model_types: str) -> tuple[str, ...]:
    """Let transformers build models of these types with their RMS norms on `retrograd.rms_norm`.

    From then on `from_pretrained` and `from_config` do so, also where a trainer or another library calls them; a model
    that is there already takes `patch`. It is transformers' own mapping of classes
    (`transformers.monkey_patching.register_patch_mapping`); `unregister_patch_mapping` with the names returned here
    undoes it. A norm that computes something else keeps its class.

    Args:
        model_types: what configurations have as `model_type`, such as "llama".

    Returns:
        The names of the classes that are replaced.

    Raises:
        NotImplementedError: if this version of transformers has no such mapping.
        TypeError: for a type of model that is no str.
        ValueError: for a type of model that transformers does not have, or that has no RMS norm.

    Example:
        >>> import transformers
        >>> from retrograd.compat.transformers import register_norms
        >>> register_norms("llama")
        ('LlamaRMSNorm',)
        >>> config = transformers.LlamaConfig(
        ...     vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> transformers.AutoModelForCausalLM.from_config(config).model.norm
        RMSNorm((16,), eps=1e-06, offset=0.0, was LlamaRMSNorm)
        >>> from transformers.monkey_patching import unregister_patch_mapping
        >>> unregister_patch_mapping(["LlamaRMSNorm"])
    """
    try:
        from transformers.monkey_patching import register_patch_mapping
    except ImportError as error:
        import transformers

        version = transformers.__version__
        raise NotImplementedError(f"register_norms: transformers {version} has no register_patch_mapping") from error
    mapping: dict[str, type[nn.Module]] = {}
    for model_type in model_types:
        if not isinstance(model_type, str):
            expected = "a str such as 'llama', each type as an argument of its own"
            raise bad_type("register_norms", "model_type", model_type, expected)
        kinds = _norms_of(model_type)
        if not kinds:
            raise bad_value("register_norms", "model_type", model_type, "one whose model has an RMS norm")
        mapping |= {kind.__name__: replacing(RMSNorm, kind) for kind in kinds}
    register_patch_mapping(mapping, overwrite=True)
    return tuple(mapping)


def _norms_of(model_type: str) -> list[type[nn.Module]]:
    """The classes of RMS norms in a model's file, by their names."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

    if model_type not in CONFIG_MAPPING_NAMES:
        raise bad_value("register_norms", "model_type", model_type, "a model_type of transformers")
    name = model_type_to_module_name(model_type)
    path = f"transformers.models.{name}.modeling_{name}"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not path.startswith(error.name or path):
            raise  # a package that the file needs
        return []
    kinds = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, nn.Module)]
    return [kind for kind in kinds if possible(kind) and kind.__module__ == module.__name__]
