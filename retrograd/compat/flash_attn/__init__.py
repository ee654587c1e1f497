"""flash-attn's functions on `retrograd.attention`, in the modules that the package flash_attn has them in.

What differs from flash-attn:

- Every gradient is bitwise reproducible. lse and the slopes have gradients, too, which flash-attn drops.
- A query that sees no key has -inf as lse; flash-attn 2 has +inf.
- float32 and float64 are taken, head sizes up to 576, and values of another size than queries and keys, up to 512.
- Dropout takes its seed from PyTorch's generator, but drops other pairs than flash-attn. With `return_attn_probs` the
  probabilities are normalised, and in an array without padding.
- Packed sequences may come without `max_seqlen_q` and `max_seqlen_k`, which have no effect.
- Functions with `return_lse` return out alone without it, where flash-attn 4 returns (out, None).
- transformers looks for the distribution flash-attn, so these modules are not put in its place.
"""

from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = "2.8.3"  # the release with these signatures

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
