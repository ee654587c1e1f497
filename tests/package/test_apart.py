"""Kernels that another process compiles."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from careless_kernels import unused
from checks.programs import launches

from retrograd.core import apart, build
from retrograd.core.arch import SUPPORTED
from retrograd.ops.infos import NAMES, info

ARCH = SUPPORTED["sm_90"]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of Triton, and a process that has compiled nothing and has many cores."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(apart, "LEAST_CORES", 1)
    build._compiled.forget()
    yield tmp_path
    build._compiled.forget()


def described(name: str) -> list[tuple[Any, build.Job]]:
    """Kernels and jobs of an op's first case for tests."""
    found = [build._described(launch, p.arrays, ARCH, None) for p, launch in launches(info(name), case_of(name), ARCH)]
    return [(kernel, job) for kernel, job, _ in found]


def case_of(name: str) -> Any:
    return next(case for case in info(name).tagged("test") if list(launches(info(name), case, ARCH)))


@pytest.mark.parametrize("name", NAMES)
def test_another_process_can_be_told_what_to_compile(name: str) -> None:
    for kernel, job in described(name):
        assert getattr(import_module(kernel.fn.__module__), kernel.fn.__name__) is kernel
        assert pickle.loads(pickle.dumps(job)) == job


def test_a_process_without_a_framework_compiles_what_this_one_would(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for framework in ("torch", "jax"):
        (empty_cache / f"{framework}.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(str(empty_cache))
    kernel, job = described("rms_norm")[0]
    assert build.cached(kernel, job) is None
    assert apart.run(kernel, job)
    assert build.cached(kernel, job) is not None
    found = build.compile_job(kernel, job).asm["ptx"]

    monkeypatch.setenv("TRITON_CACHE_DIR", str(empty_cache / "own"))
    assert build.cached(kernel, job) is None
    assert build.compile_job(kernel, job).asm["ptx"] == found


def test_kernels_that_are_begun_are_compiled_there_but_for_the_first(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def run(kernel: Any, job: build.Job) -> bool:
        asked.append(kernel.fn.__name__)
        return real(kernel, job)

    real = apart.run
    monkeypatch.setattr(apart, "run", run)
    found = list(launches(info("rms_norm"), case_of("rms_norm"), ARCH))
    build.begin(dict.fromkeys(program for program, _ in found), ARCH)
    for program, launch in found:
        assert build.build(launch, program.arrays, ARCH).asm["ptx"]
    assert set(asked) == {launch.kernel.fn.__name__ for _, launch in found[1:]}
    assert found[0][1].kernel.fn.__name__ not in asked

    build._compiled.forget()  # now they are in the cache
    asked.clear()
    build.begin(dict.fromkeys(program for program, _ in found), ARCH)
    for program, launch in found:
        build.build(launch, program.arrays, ARCH)
    assert not asked


def test_what_a_process_cannot_compile_is_compiled_here(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, job = described("rms_norm")[0]
    assert not apart.run(kernel, None)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert not apart.run(kernel, job)
    assert build._compile_apart(kernel, job, None).asm["ptx"]


def test_only_kernels_of_the_package_by_python_itself_and_with_enough_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = described("rms_norm")[0]
    monkeypatch.setattr(apart.os, "sched_getaffinity", lambda _: range(apart.LEAST_CORES))
    assert apart.possible(kernel)
    assert not apart.possible(unused)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/opt/an-application")
        assert not apart.possible(kernel)
    monkeypatch.setattr(apart.os, "sched_getaffinity", lambda _: range(apart.LEAST_CORES - 1))
    assert not apart.possible(kernel)


KEYS = """
import sys
from importlib import import_module
from retrograd.core.keys import settle
for place in sys.argv[1:]:
    module, name = place.split(":")
    kernel = getattr(import_module(module), name)
    settle(kernel)
    print(place, kernel.cache_key)
"""


@pytest.mark.slow
def test_the_key_of_a_kernel_does_not_depend_on_what_was_compiled_before() -> None:
    kernels = {kernel for name in NAMES for kernel, _ in described(name)}
    places = sorted(f"{kernel.fn.__module__}:{kernel.fn.__name__}" for kernel in kernels)

    def keys(order: list[str]) -> set[str]:
        done = subprocess.run([sys.executable, "-c", KEYS, *order], capture_output=True, text=True, check=True)
        return set(done.stdout.splitlines())

    found = keys(places)
    assert len(found) == len(places)
    assert keys(places[::-1]) == found
    assert keys(places[len(places) // 2 :]) <= found
