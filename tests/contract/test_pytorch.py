"""The promises of every op under PyTorch's compiler, autograd and dispatcher."""

from __future__ import annotations

import pytest
from checks import derivatives, integration
from parameters import CASE, FEW, SMALL, each_case

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL))
def test_the_registered_operator_gives_the_bits_of_the_direct_path(
    info: OpInfo, case: Case, device: str, seed: int
) -> None:
    integration.check_operator(info, case, device, seed)


@pytest.mark.parametrize((*CASE, "shapes"), each_case("static", "dynamic", cpu=SMALL, only=FEW, spread=True, half=True))
def test_it_compiles_without_a_graph_break_to_the_bits_of_eager(
    info: OpInfo, case: Case, device: str, shapes: str, seed: int
) -> None:
    integration.check_compile(info, case, device, seed, "aot_eager", shapes == "dynamic")


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(CASE, each_case(cpu=SMALL))
def test_inductor_gives_the_bits_of_eager(info: OpInfo, case: Case, device: str, dynamic: bool, seed: int) -> None:
    integration.check_compile(info, case, device, seed, "inductor", dynamic)


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, only=FEW))
def test_autocast_casts_what_is_declared(info: OpInfo, case: Case, device: str, seed: int) -> None:
    integration.check_autocast(info, case, device, seed)


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, only=FEW))
def test_activation_checkpointing_gives_the_same_bits(info: OpInfo, case: Case, device: str, seed: int) -> None:
    integration.check_checkpoint(info, case, device, seed)


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL))
def test_a_gradient_asked_for_alone_has_the_same_bits(info: OpInfo, case: Case, device: str, seed: int) -> None:
    integration.check_subsets(info, case, device, seed)


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL))
def test_an_output_without_a_gradient_counts_as_zero(info: OpInfo, case: Case, device: str, seed: int) -> None:
    integration.check_outputs_alone(info, case, device, seed)


@pytest.mark.parametrize(
    (*CASE, "road"), each_case(cpu=SMALL, cuda=(), each=derivatives.roads_of, spread=True, half=True)
)
def test_derivatives_of_any_order_are_right_on_every_road(
    info: OpInfo, case: Case, device: str, road: str, seed: int
) -> None:
    derivatives.check_road(info, case, road, device, seed)


@pytest.mark.gpu
@pytest.mark.parametrize((*CASE, "road"), each_case("by_name", "func_jvp", cpu=(), cuda=SMALL, only=FEW))
def test_derivatives_of_what_kernels_made_are_right(
    info: OpInfo, case: Case, device: str, road: str, seed: int
) -> None:
    derivatives.check_road(info, case, road, device, seed)


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, cuda=SMALL, only=FEW))
def test_gradients_in_batches_are_those_of_each_alone(info: OpInfo, case: Case, device: str, seed: int) -> None:
    derivatives.check_batched_gradients(info, case, device, seed)


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, cuda=SMALL, only=FEW))
def test_a_second_derivative_is_refused_under_the_dispatcher(info: OpInfo, case: Case, device: str, seed: int) -> None:
    derivatives.check_refused_under_dispatch(info, case, device, seed)
