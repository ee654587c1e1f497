"""In the interpreter too, a launch gives every parameter of its kernel a value, and no other values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from strided_kernels import COLUMNS, ROWS, program

from retrograd.core.torch.launch import interpret


def test_a_launch_is_refused_before_it_runs() -> None:
    sound = program((COLUMNS, 1), None)
    wrong = replace(sound.launches[0], scalars={"rows": ROWS, "column": COLUMNS})
    with pytest.raises(ValueError, match=r"^total: parameters without a value: columns; .* a parameter: column$"):
        interpret(replace(sound, launches=(wrong,)), [torch.randn(ROWS, COLUMNS)])
