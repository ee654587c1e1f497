"""DTensor: PyTorch refuses every op by name, since none has a sharding strategy registered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import infos
from retrograd.testing.draw import draw, options, outputs


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("op", infos(), ids=lambda op: op.name)
def test_a_distributed_tensor_is_refused_by_the_name_of_the_op(op: OpInfo, mesh: DeviceMesh) -> None:
    case = op.tagged("interpreter")[0]
    inputs = {name: distribute_tensor(t, mesh, [Replicate()]) for name, t in draw(case, "cpu", 0).items()}
    with pytest.raises(NotImplementedError, match=rf"retrograd\.{op.name}\.default .* sharding strategy"):
        outputs(op.torch, inputs, options(case))
