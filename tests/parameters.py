"""The cases of every op, as parameters of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from checks.layouts import layouts_of
from checks.parts import batch_size, is_packed

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import infos

CASE = ("info", "case", "device")
CPU: tuple[str, ...] = ("test",)
SMALL: tuple[str, ...] = ("interpreter",)  # for tests that do not depend on the size of a case
CUDA = ("test", "gpu")
FEW = OpInfo.is_representative


def of_a_batch(info: OpInfo, case: Case) -> list[str]:
    """The layouts in which the contract lays a batch of the case; none without a batch."""
    return layouts_of(info, case) if batch_size(info, case) else []


def frequent(cases: Sequence[Case]) -> list[Case]:
    """Every other case of an op, and a packed one, if there is one."""
    found = [*cases[::2], *(case for case in cases[1::2] if is_packed(case))]
    packed = [case for case in found if is_packed(case)]
    return [case for case in found if case not in packed[1:]]


def each_case(
    *extra: Any,
    cpu: tuple[str, ...] = CPU,
    cuda: tuple[str, ...] = CUDA,
    only: Callable[[OpInfo, Case], bool] = lambda info, case: True,
    each: Callable[[OpInfo, Case], Sequence[Any]] | None = None,
    spread: bool = False,
    once: bool = False,
    half: bool = False,
) -> list[Any]:
    """The cases with one of the tags of a device that is there, as parameters (info, case, device) and extra ones.

    Args:
        extra: every case is repeated with each of these, if any.
        cpu: the tags on a CPU.
        cuda: the tags on a GPU.
        only: whether a case is included.
        each: returns the extra parameters of a case, if they depend on it.
        spread: distribute the extra parameters over those cases of an op that have the same ones: a few for each
            case, the rest are `slow`.
        once: with `spread`, each extra parameter for one of those cases alone.
        half: on a CPU only the frequent cases of an op are not `slow`.
    """
    found = []
    devices = [("cpu", cpu, ()), *([("cuda", cuda, (pytest.mark.gpu,))] if torch.cuda.is_available() else [])]
    for device, tags, marks in devices:
        for info in infos():
            cases = [case for case in info.tagged(*tags) if only(info, case)]
            extras = {case.name: list(each(info, case) if each else extra) for case in cases}
            often = frequent(cases) if half and device == "cpu" else cases
            for case in cases:
                parameters = extras[case.name]
                sharing = [other.name for other in often if extras[other.name] == parameters] or [case.name]
                few = -(-len(parameters) // len(sharing)) if spread else len(parameters)
                first = sharing.index(case.name) * few if case.name in sharing else 0
                for index, values in enumerate([(one,) for one in parameters] if each or extra else [()]):
                    name = "-".join(map(str, (info.name, case.name, device, *values)))
                    over = once and first >= len(parameters)
                    later = spread and (over or (index - first) % len(parameters) >= few)
                    later |= case not in often
                    found.append(
                        pytest.param(
                            info, case, device, *values, id=name, marks=(*marks, pytest.mark.slow) if later else marks
                        )
                    )
    return found
