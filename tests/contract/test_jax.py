"""The promises of every op in JAX: the error budget and the transformations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np
from checks import contract, jax_contract, jax_derivatives
from checks.jax_contract import TRANSFORMS
from checks.parts import length
from parameters import CASE, FEW, SMALL, each_case

from retrograd.core.arch import SUPPORTED
from retrograd.jax import linear_scan
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.verify import run


def test_these_tests_run_where_jax_adds_no_axes_and_converts_no_dtypes_by_itself() -> None:
    with pytest.raises(ValueError, match="jax_numpy_rank_promotion"):
        jnp.ones((2, 3)) * jnp.ones(3)
    with pytest.raises(ValueError, match="jax_numpy_dtype_promotion"):
        jnp.ones(3) * jnp.ones(3, jnp.bfloat16)


MOST_STEPS = 128


def in_every_run(info: OpInfo, case: Case) -> bool:
    """Whether the case is not `slow` in JAX on a CPU; PyTorch has the same formulas, with other loops over time."""
    return info.is_representative(case)


@pytest.mark.parametrize(CASE, [*each_case(cuda=(), only=in_every_run), *each_case(cpu=())])
def test_outputs_and_gradients_keep_their_error_budget(info: OpInfo, case: Case, device: str, seed: int) -> None:
    contract.check_errors(info, case, device, seed, framework="jax")


@pytest.mark.slow
@pytest.mark.parametrize(CASE, each_case(cuda=(), only=lambda info, case: not in_every_run(info, case)))
def test_so_they_do_in_every_case(info: OpInfo, case: Case, device: str, seed: int) -> None:
    contract.check_errors(info, case, device, seed, framework="jax")


@pytest.mark.parametrize((*CASE, "transform"), each_case(*TRANSFORMS, cpu=SMALL, only=FEW, spread=True, half=True))
def test_transformations_keep_the_meaning(info: OpInfo, case: Case, device: str, transform: str, seed: int) -> None:
    jax_contract.check_transformed(info, case, transform, device, seed)


@pytest.mark.parametrize((*CASE, "batched"), each_case("all", "inputs", cpu=SMALL, only=FEW, spread=True, half=True))
def test_vmap_gives_every_example_what_it_has_alone(
    info: OpInfo, case: Case, device: str, batched: str, seed: int
) -> None:
    jax_contract.check_vmap(info, case, batched == "inputs", device, seed)


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, only=FEW, half=True))
def test_an_exported_call_keeps_the_error_budget(info: OpInfo, case: Case, device: str, seed: int) -> None:
    jax_contract.check_export(info, case, device, seed)


MOST_ARGUMENTS = 4  # with derivatives, of each of which a backward pass is compiled by the road `by_name`


def quick_roads(info: OpInfo, case: Case) -> list[str]:
    """The roads that XLA compiles in seconds: of a scan over several chunks they take it a minute."""
    if info.time_axis and length(info, case) > MOST_STEPS:
        return []
    many = sum("int" not in array.dtype for array in case.inputs.values()) > MOST_ARGUMENTS
    return [road for road in jax_derivatives.ROADS if road != "by_name" or not many]


def other_roads(info: OpInfo, case: Case) -> list[str]:
    return [road for road in jax_derivatives.ROADS if road not in quick_roads(info, case)]


@pytest.mark.parametrize(
    (*CASE, "road"), each_case(cpu=SMALL, cuda=SMALL, only=FEW, each=quick_roads, spread=True, once=True, half=True)
)
def test_forward_mode_and_second_derivatives_are_those_of_the_definition(
    info: OpInfo, case: Case, device: str, road: str, seed: int
) -> None:
    jax_derivatives.check_road(info, case, road, device, seed)


@pytest.mark.slow
@pytest.mark.parametrize((*CASE, "road"), each_case(cpu=SMALL, cuda=SMALL, only=FEW, each=other_roads))
def test_so_they_are_where_xla_takes_long(info: OpInfo, case: Case, device: str, road: str, seed: int) -> None:
    jax_derivatives.check_road(info, case, road, device, seed)


def test_a_state_of_zeros_moves_as_any_other() -> None:
    a = jax.random.uniform(jax.random.key(0), (2, 200, 3), minval=0.9)
    start = jnp.zeros((2, 3))
    moved = jax.jvp(lambda h: linear_scan(a, jnp.zeros_like(a), initial_state=h), (start,), (start + 1,))[1]
    np.testing.assert_allclose(moved, jnp.cumprod(a, 1), rtol=1e-5)


def has_kernels(info: OpInfo, case: Case) -> bool:
    return info.programs(case, SUPPORTED["sm_90"]) is not None


@pytest.mark.gpu
@pytest.mark.parametrize(CASE, each_case(cpu=(), only=has_kernels))
def test_both_frameworks_run_the_same_kernels_to_the_same_bits(
    info: OpInfo, case: Case, device: str, seed: int
) -> None:
    inputs, gradients = contract.drawn(info, case, device, seed)
    torch_result, jax_result = (run(info, case, f, inputs, gradients) for f in ("torch", "jax"))
    assert_same_bits(jax_result, torch_result, f"{info.name}, {case.name}: JAX and PyTorch")


def test_rows_on_two_devices_have_the_gradients_of_the_whole_in_shard_map_and_on_an_explicit_mesh() -> None:
    script = Path(__file__).parents[1] / "shard_map_two_devices.py"
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
