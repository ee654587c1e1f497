"""The bigram model, a baseline: a byte's probability given the byte before it."""

from __future__ import annotations

import numpy as np

from .presets import BYTES

PART = 1 << 20  # bytes counted at once


class Bigram:
    """Counts of pairs of bytes, each plus one.

    Args:
        text: (size,) uint8, the training bytes.

    Example:
        >>> import numpy as np
        >>> from retrograd.train.bigram import Bigram
        >>> model = Bigram(np.frombuffer(b"abababab", np.uint8))
        >>> round(model.bits_per_byte(np.array([[97, 98]])), 3)  # log2((4 + 256) / (4 + 1))
        5.7
    """

    def __init__(self, text: np.ndarray) -> None:
        counts = np.ones(BYTES * BYTES, np.int64)
        for start in range(0, len(text) - 1, PART):
            part = text[start : start + PART + 1].astype(np.int64)
            counts += np.bincount(part[:-1] * BYTES + part[1:], minlength=BYTES * BYTES)
        table = counts.reshape(BYTES, BYTES)
        self.bits = np.log2(table.sum(1, keepdims=True)) - np.log2(table)

    def bits_per_byte(self, windows: np.ndarray) -> float:
        """The mean of -log2 p(byte | byte before) over all bytes of (B, T + 1) windows except the first of each."""
        return float(self.bits[windows[:, :-1], windows[:, 1:]].mean())
