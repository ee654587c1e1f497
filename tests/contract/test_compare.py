"""What an assertion about bits says."""

import pytest
import torch

from retrograd.testing.compare import assert_same_bits


def test_it_names_every_array_that_differs_and_where() -> None:
    expected = {"out": torch.zeros(2, 3), "lse": torch.ones(4), "dq": torch.ones(5)}
    result = {name: tensor.clone() for name, tensor in expected.items()}
    result["out"][0, 2] = 0.5
    result["out"][1, 1] = -2.0
    result["dq"][3] = float("nan")
    with pytest.raises(AssertionError) as raised:
        assert_same_bits(result, expected, "again")
    assert str(raised.value) == (
        "again: out differs by 2.0 at 2 of 6 places, from (0, 2) to (1, 1); "
        "again: dq differs by nan at 1 of 5 places, from (3,) to (3,)"
    )


def test_the_sign_of_zero_is_a_bit() -> None:
    with pytest.raises(AssertionError, match="signs of zeros"):
        assert_same_bits({"out": torch.zeros(2)}, {"out": -torch.zeros(2)}, "here")


def test_another_shape_or_dtype_is_not_the_same() -> None:
    with pytest.raises(AssertionError, match=r"is \(3,\) torch.float32, expected \(2,\) torch.bfloat16"):
        assert_same_bits({"out": torch.zeros(3)}, {"out": torch.zeros(2, dtype=torch.bfloat16)}, "here")
