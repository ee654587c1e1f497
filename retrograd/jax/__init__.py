"""The JAX face of retrograd. `import retrograd` alone does not import jax."""

try:
    import jax  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("retrograd.jax needs jax: pip install retrograd[jax]", name=error.name) from error

from retrograd.ops.causal_conv1d.jax_op import causal_conv1d, causal_conv1d_update
from retrograd.ops.linear_scan.jax_op import linear_scan
from retrograd.ops.rms_norm.jax_op import rms_norm
from retrograd.ops.selective_scan.jax_op import selective_scan, selective_state_update
from retrograd.ops.ssd.jax_op import SsdWindow, ssd, ssd_prefill, ssd_step, ssd_update

__all__ = [
    "SsdWindow",
    "causal_conv1d",
    "causal_conv1d_update",
    "linear_scan",
    "rms_norm",
    "selective_scan",
    "selective_state_update",
    "ssd",
    "ssd_prefill",
    "ssd_step",
    "ssd_update",
]
