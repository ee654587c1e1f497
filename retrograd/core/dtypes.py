"""Dtype names (those that torch, jax and numpy share), their sizes in bytes, and Triton's names for them."""

from __future__ import annotations

BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
}
# A kernel sees a complex number as two floats, the real part first.
TRITON = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "complex64": "fp32",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
}

KERNEL_FLOATS = ("float32", "bfloat16", "float16")
# float64 runs only on the portable path, for tests and for gradcheck.
FLOATS = (*KERNEL_FLOATS, "float64")
