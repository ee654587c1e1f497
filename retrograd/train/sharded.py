"""Training in PyTorch with parameters, gradients and the optimiser's arrays sharded over processes, by FSDP2."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from retrograd.distributed import order_fsdp
from retrograd.nn import LanguageModel

from .learner import Moments, check_moments
from .torch_learner import TorchLearner


class ShardedLearner(TorchLearner):
    """As `TorchLearner`, with the same bits. The first process has a whole model beside its shard, to evaluate it."""

    _whole: LanguageModel | None = None
    _moments: Moments

    def _place(self) -> None:
        mesh = init_device_mesh(self.settings.device, (self.ranks.world,))
        for block in self._model.backbone.layers:
            fully_shard(block, mesh=mesh)  # moves it to the mesh's device
        fully_shard(self._model, mesh=mesh)
        order_fsdp(self._model, self.slots)
        if self.ranks.first:
            self._whole = LanguageModel(self.config).to(self.settings.device)

    @property
    def model(self) -> LanguageModel:
        """The whole model after the last `collect`, in the first process."""
        assert self._whole is not None
        return self._whole

    def collect(self) -> None:
        """See `Learner`."""
        self.ranks.together(self._collect)

    @torch.no_grad()
    def _collect(self) -> None:
        for name, parameter in self._model.named_parameters():
            full = whole(parameter)
            if self._whole is not None:
                self._whole.get_parameter(name).copy_(full)
        self._moments = {}
        for name, moment in super().moments().items():
            full = whole(moment)  # all processes take part
            if self.ranks.first:
                self._moments[name] = full.cpu()

    def moments(self) -> Moments:
        """Those after the last `collect`, in the first process."""
        return self._moments

    def loss(self, windows: np.ndarray) -> float:
        """See `Learner`; in the first process."""
        return self._evaluated(self.model, windows)

    @torch.no_grad()
    def restore(self, model: LanguageModel, moments: Moments) -> None:
        """See `Learner`."""
        parameters = dict(self._model.named_parameters())
        check_moments(moments, {name: tuple(p.shape) for name, p in parameters.items()})
        for name, saved in model.named_parameters():
            parameters[name].copy_(shard_as(parameters[name], saved))
        of_parameter = {key: parameters[key.rpartition("/")[0]] for key in moments}
        self._restore_moments(
            {key: shard_as(of_parameter[key], moment) if moment.ndim else moment for key, moment in moments.items()}
        )

    def _take(self) -> None:
        """FSDP2 has added the gradients."""

    def _finish(self) -> None:
        self.ranks.together(self._clip)

    def _clip(self) -> None:
        """As `clip_grad_norm_`; the norm of a whole gradient has the same bits on any number of processes."""
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        norms = [torch._foreach_norm([whole(gradient)])[0] for gradient in gradients]
        total = torch.linalg.vector_norm(torch.stack(norms))
        scale = torch.clamp(self.preset.clip / (total + 1e-6), max=1.0)
        torch._foreach_mul_([local(gradient) for gradient in gradients], scale)


def whole(x: Tensor) -> Tensor:
    """A sharded array as one; another one as it is."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def local(x: Tensor) -> Tensor:
    """This process's shard."""
    return x.to_local() if isinstance(x, DTensor) else x


def shard_as(like: Tensor, x: Tensor) -> Tensor:
    """An array that all processes have, sharded as another."""
    assert isinstance(like, DTensor)
    return distribute_tensor(x.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
