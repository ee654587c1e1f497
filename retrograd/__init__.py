"""retrograd: training kernels for sequence models, forward and backward. This is the PyTorch face.

The JAX face is `retrograd.jax`. Every gradient is bitwise reproducible, and where there is no GPU the same calls run
on a portable path.
"""

from retrograd._version import __version__
from retrograd.ops.causal_conv1d.torch_op import causal_conv1d, causal_conv1d_update
from retrograd.ops.linear_scan.torch_op import linear_scan
from retrograd.ops.rms_norm.torch_op import rms_norm
from retrograd.ops.selective_scan.torch_op import selective_scan, selective_state_update
from retrograd.ops.ssd.torch_op import SsdWindow, ssd, ssd_prefill, ssd_step, ssd_update

__all__ = [
    "SsdWindow",
    "__version__",
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
