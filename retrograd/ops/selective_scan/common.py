"""The common part of the declarations of `selective_scan` and `selective_state_update`: letters, dtypes, some texts."""

from __future__ import annotations

from typing import ClassVar

from retrograd.core.declaration import Letter
from retrograd.core.dtypes import accumulator
from retrograd.core.spec import CallSpec, Param

MAX_N = 256
FLOAT_OR_COMPLEX = ("Float", "Complex")  # kinds of numbers
D_DOC = "(D,), float32: a skip from x to y."
DT_BIAS_DOC = "(D,), float32, added to dt."
DT_SOFTPLUS_DOC = "whether to apply softplus to dt + dt_bias."


class Common(CallSpec):
    """The letters and dtypes."""

    x: Param
    A: Param
    B: Param
    C: Param

    letters: ClassVar = {
        "B": Letter("batch"),
        "T": Letter("time"),
        "D": Letter("channels"),
        "N": Letter("state", 1, MAX_N),
        "G": Letter("groups", divides="D"),
        "K": Letter("groups", divides="D"),
        "S": Letter("sequences", 1),
    }

    @property
    def compute_dtype(self) -> str:
        """Dtype of the real arithmetic."""
        return accumulator(self.x.dtype)

    @property
    def pair_dtype(self) -> str:
        """Dtype of complex numbers, pairs of real ones."""
        return "complex128" if self.compute_dtype == "float64" else "complex64"

    @property
    def complex(self) -> bool:
        """Whether A, B, C and the states are complex."""
        return self.A.dtype.startswith("complex")

    @property
    def state_dtype(self) -> str:
        """Dtype of the states."""
        return self.pair_dtype if self.complex else self.compute_dtype

    @property
    def B_dtypes(self) -> tuple[str, ...]:
        """Dtypes that B may have."""
        return self._dtypes_of_matrix("B")

    @property
    def C_dtypes(self) -> tuple[str, ...]:
        """Dtypes that C may have."""
        return self._dtypes_of_matrix("C")

    def constant(self, name: str) -> bool:
        """Whether B or C is the same at all steps: (D, N)."""
        return False

    def matrix(self, name: str) -> Param:
        """B or C."""
        return self.B if name == "B" else self.C

    def _dtypes_of_matrix(self, name: str) -> tuple[str, ...]:
        """The dtype of the states; a real matrix with a time axis may also have that of x."""
        return (self.state_dtype,) if self.complex or self.constant(name) else (self.x.dtype, self.state_dtype)
