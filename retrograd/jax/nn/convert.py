"""Parameters from a PyTorch model, and back to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array

from retrograd.models.config import MambaConfig
from retrograd.models.shapes import model_shapes

from .parameters import Params, check, check_config

if TYPE_CHECKING:  # only conversion needs torch
    from torch import Tensor

    from retrograd.nn import LanguageModel


def from_torch(model: LanguageModel) -> dict[str, Array]:
    """The parameters of a PyTorch model, copied bitwise to JAX's default device.

    To read a checkpoint, use it with `retrograd.nn.load`.

    Raises:
        TypeError: for a module that is no language model.
        ValueError: for a model whose parameters are no longer those of its config.

    Example:
        >>> import retrograd.nn
        >>> from retrograd.jax import nn
        >>> config = nn.MambaConfig(d_model=64, n_layer=2, vocab_size=256)
        >>> params = nn.from_torch(retrograd.nn.LanguageModel(config))
        >>> params["backbone.norm_f.weight"].shape
        (64,)
    """
    from retrograd.nn.files import stored

    return {name: _to_jax(tensor) for name, tensor in stored(model, "from_torch").items()}


def to_torch(params: Params, config: MambaConfig) -> LanguageModel:
    """A PyTorch model on the CPU with these parameters, copied bitwise.

    To write a checkpoint, use it with `retrograd.nn.save`.

    Raises:
        ValueError, TypeError: for parameters of other names, shapes or dtypes.

    Example:
        >>> import jax
        >>> from retrograd.jax import nn
        >>> config = nn.MambaConfig(d_model=64, n_layer=2, vocab_size=256)
        >>> model = nn.to_torch(nn.init(jax.random.key(0), config), config)
        >>> model.backbone.norm_f.weight.shape
        torch.Size([64])
    """
    from retrograd.nn.files import built

    check_config("to_torch", config)
    check("to_torch", params, dict(model_shapes(config)))
    return built({name: _to_torch(array) for name, array in params.items()}, config)


# Arrays are passed as bytes, since numpy has no bfloat16 that torch can read or write.
def _to_jax(tensor: Tensor) -> Array:
    import torch

    dtype = jnp.dtype(str(tensor.dtype).removeprefix("torch."))
    return jnp.array(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().view(dtype))


def _to_torch(array: Array) -> Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, str(array.dtype))
    return torch.from_numpy(np.array(array, order="C").view(np.uint8)).view(dtype)
