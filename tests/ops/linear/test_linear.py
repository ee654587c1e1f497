"""linear beyond its contract: which calls the Hopper kernels take, tiles, and what is exact on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from checks import programs
from checks.resources import resources

import retrograd
from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.torch.launch import reading_early
from retrograd.core.torch.products import row_products
from retrograd.opinfo.info import spec_of
from retrograd.ops.infos import info
from retrograd.ops.linear.cases import case
from retrograd.ops.linear.hopper.plan import LARGE, NARROW, SQUARE, TALL, Few, planned
from retrograd.ops.linear.op import OP

HOPPER = SUPPORTED["sm_90"]


def kernels(which: str, rows: int, N: int = 1024, K: int = 2048, **how: Any) -> list[str]:
    of_rows = case("call", (rows,), N, K, **how)
    return [
        launch.kernel.__module__.split(".")[-2] + " " + launch.kernel.__name__
        for _, launch in programs.launches(info("linear"), of_rows, SUPPORTED[which])
    ]


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_few_rows_have_a_kernel_of_their_own_on_hopper(rows: int) -> None:
    assert kernels("sm_90", rows) == ["hopper few_rows", "hopper few_rows", "hopper product"]


@pytest.mark.compile
@pytest.mark.parametrize("rows", [1, 64])
def test_a_kernel_that_reads_weights_early_asks_for_them_before_its_wait(rows: int) -> None:
    (program, launch), *_ = programs.launches(info("linear"), case("call", (rows,), 1024, 2048), HOPPER)
    assert launch.early == "weight"
    compiled = [build(each, program.arrays, HOPPER) for each in (launch, reading_early(launch))]
    before = [each.asm["ptx"].split("griddepcontrol.wait")[0].count("cp.async.bulk.tensor") for each in compiled]
    assert before[0] == 0
    assert before[1] > 0
    assert all(resources(each).spills == 0 for each in compiled)


def test_more_rows_go_to_persistent_programs() -> None:
    assert kernels("sm_90", 257, 4096, 4096) == ["hopper product"] * 3


@pytest.mark.parametrize("how", [{"dtype": "float32"}, {"N": 1028}, {"K": 2044}])
def test_what_tensor_descriptors_or_tensor_cores_cannot_have_goes_to_triton(how: dict[str, Any]) -> None:
    assert "hopper" not in " ".join(kernels("sm_90", 100, **how))


@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "gfx942", "gfx950"])
def test_other_architectures_have_no_such_instructions(arch: str) -> None:
    assert "hopper" not in " ".join(kernels(arch, 100))


@pytest.mark.parametrize(("N", "K"), [(64, 64), (1024, 1024), (4096, 1024), (50304, 1024), (1024, 4096)])
def test_the_gradient_of_a_weight_has_parts_where_its_tiles_are_few_and_rows_are_many(N: int, K: int) -> None:
    parts = [planned(spec_of(OP, case("call", (rows,), N, K)), HOPPER, "bwd").parts for rows in (1, 1024, 2**20)]
    assert parts == [1, 1, max(1, min(16, 132 // (-(-N // 128) * -(-K // 256))))]


@pytest.mark.parametrize(
    ("rows", "N", "few"),
    [
        (1, 1024, Few(8, 128, 8)),
        (9, 4096, Few(16, 128, 8)),
        (32, 50304, Few(32, 128, 4)),
        (64, 1024, Few(32, 128, 8)),
        (64, 4096, Few(64, 64, 8)),
        (64, 50304, Few(64, 64, 4)),
        (512, 1024, Few(64, 64, 8)),
        (513, 1024, None),
        (65, 8192, None),
    ],
)
def test_few_rows_are_divided_as_long_as_all_programs_run_at_once(rows: int, N: int, few: Few | None) -> None:
    assert planned(spec_of(OP, case("call", (rows,), N, 1024)), HOPPER, "fwd").few == few


@pytest.mark.parametrize(
    ("rows", "N", "tile"),
    [(512, 2048, NARROW), (512, 4096, SQUARE), (1024, 4096, TALL), (2048, 1024, SQUARE), (128, 65536, LARGE)],
)
def test_tiles_are_those_that_keep_all_multiprocessors_busy(rows: int, N: int, tile: Any) -> None:
    assert planned(spec_of(OP, case("call", (rows,), N, 4096)), HOPPER, "fwd").rows == tile


@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float32, 1), (torch.float64, 12)])
def test_products_on_a_cpu_have_few_roundings(dtype: torch.dtype, roundings: int, seed: int) -> None:
    # In float64, 6 products of integers are added for each of 2 ranges of terms.
    torch.manual_seed(seed)
    scales = 2.0 ** torch.randint(-40, 40, (50, 1), dtype=dtype)
    a, b = scales * torch.randn(50, 5000, dtype=dtype), torch.randn(30, 5000, dtype=dtype)
    exact = a.numpy().astype(np.longdouble) @ b.mT.numpy().astype(np.longdouble)
    errors = np.linalg.norm(row_products(a, b).numpy() - exact, axis=1)
    assert (errors < roundings * torch.finfo(dtype).eps / 2 * np.linalg.norm(exact, axis=1)).all()


def test_an_infinity_or_nan_reaches_its_row_and_no_other() -> None:
    x, weight = torch.ones(4, 3), torch.ones(2, 3)
    x[1, 0], x[2, 1] = torch.inf, torch.nan
    y = retrograd.linear(x, weight)
    assert y[1].isposinf().all()
    assert y[2].isnan().all()
    assert torch.equal(y[[0, 3]], torch.full((2, 2), 3.0))
    weight[1, 0] = -torch.inf
    assert torch.equal(retrograd.linear(x[:1], weight), torch.tensor([[3.0, -torch.inf]]))


def test_one_row_has_the_bits_that_it_has_among_others_on_a_cpu(seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(300, 700), torch.randn(90, 700)
    y = retrograd.linear(x, weight)
    assert all(torch.equal(retrograd.linear(x[i], weight), y[i]) for i in range(0, 300, 37))
