"""A process of its own, since the number of devices is fixed when JAX starts; run by test_jax.py."""

from __future__ import annotations

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from retrograd.jax import rms_norm


def main(check_vma: bool) -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    x, dy = jax.random.normal(jax.random.key(0), (2, 8, 64))
    weight = jax.random.normal(jax.random.key(1), (64,))
    rows, whole = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(rms_norm, mesh=mesh, in_specs=(rows, whole), out_specs=rows, check_vma=check_vma)
    found, expected = (
        jax.jit(jax.grad(lambda x, weight, f=f: (f(x, weight) * dy).sum(), (0, 1)))(x, weight)
        for f in (sharded, rms_norm)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    main(sys.argv[1] == "True")
