"""Compiles a launch to a binary, for the types, constants and divisibility hints of its parameters.

Both frameworks, the cross-compilation tests and the offline tuner use `build`, so they all get the same binary. The
rules for hints are in `signature`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from . import apart
from .ahead import Ahead
from .arch import Arch
from .coalesce import coalescing
from .dtypes import TRITON
from .keys import READING, settle
from .program import ALIGNMENT, Array, Launch, Program

INT32_MAX = 2**31 - 1
Path = tuple[int, ...]  # a parameter's index; another number is the index within the tuple there


@dataclass(frozen=True, slots=True)
class Signature:
    """What a kernel is compiled for; hashable, so equal signatures share one binary."""

    types: tuple[tuple[str, Any], ...]
    constants: tuple[tuple[Path, Any], ...]
    hints: tuple[tuple[Path, int], ...]


def signature(launch: Launch, arrays: Mapping[str, Array]) -> Signature:
    """The types, constants and hints of a launch.

    Absent arrays and run-time integers equal to 1 become constants, so that the compiler removes their code. Other
    integers get a hint: the largest power of two up to 16 that divides them. A kernel's `do_not_specialize` parameters
    get neither: batch sizes are passed this way, so that a row is computed by the same binary in every batch.

    Raises:
        ValueError: see `Launch.check_values`.
    """
    launch.check_values()
    types: list[tuple[str, Any]] = []
    constants: list[tuple[Path, Any]] = []
    hints: list[tuple[Path, int]] = []

    def scalar(value: int | float, path: Path, specialize: bool) -> str:
        if isinstance(value, float):
            return "fp32"
        if specialize and value == 1:
            constants.append((path, 1))
            return "constexpr"
        if specialize and (known := divisor(value)) > 1:
            hints.append((path, known))
        return "i32" if abs(value) <= INT32_MAX else "i64"

    def pointer(array: str | None, path: Path) -> str:
        if array is None:
            constants.append((path, None))
            return "constexpr"
        if arrays[array].aligned:
            hints.append((path, ALIGNMENT))
        return f"*{TRITON[arrays[array].dtype]}"

    def entry(key: str, path: Path, specialize: bool) -> Any:
        array = launch.arrays[key]
        if key not in launch.strided:
            return pointer(array, path)
        own = launch.strided[key]
        parts = [pointer(array, (*path, 0))]
        for i, stride in enumerate(own[1:], 1):
            if array is None:
                constants.append(((*path, i), None))
            parts.append("constexpr" if array is None else scalar(stride, (*path, i), specialize))
        return type(own)(*parts)

    for place, parameter in enumerate(launch.kernel.params):
        name, specialize = parameter.name, not parameter.do_not_specialize
        if name in launch.descriptors and (array := launch.arrays[name]) is not None:
            if not arrays[array].aligned:
                raise ValueError(f"{launch.kernel.__name__}: {array} has a tensor descriptor, but may begin anywhere")
            descriptor = launch.descriptors[name]
            layout = f",{descriptor.layout!r}" if descriptor.layout else ""
            types.append((name, f"tensordesc<{TRITON[arrays[array].dtype]}{list(descriptor.block)}{layout}>"))
        elif name in launch.together:
            of = launch.together[name]
            types.append((name, of(*(entry(key, (place, i), specialize) for i, key in enumerate(of._fields)))))
        elif name in launch.arrays:
            types.append((name, entry(name, (place,), specialize)))
        elif (value := launch.scalars.get(name)) is not None:
            if isinstance(value, tuple):
                kinds = tuple(scalar(item, (place, i), specialize) for i, item in enumerate(value))
                named: Any = type(value)
                types.append((name, named(*kinds) if hasattr(value, "_fields") else kinds))
            else:
                types.append((name, scalar(value, (place,), specialize)))
        else:
            types.append((name, "constexpr"))
            constants.append(((place,), launch.constants.get(name)))
    return Signature(tuple(types), tuple(constants), tuple(hints))


def divisor(value: int) -> int:
    """The largest power of two up to 16 that divides an integer, passed to the compiler as a hint."""
    return min(value & -value, ALIGNMENT) if value else ALIGNMENT


def arguments(launch: Launch, arrays: Mapping[str, Any] | None = None) -> list[Any]:
    """The kernel's arguments in order; in the place of an array's address, also within a named tuple, is its name.

    Args:
        launch: the launch.
        arrays: array name -> what stands there instead.

    Raises:
        ValueError: see `Launch.check_values`.
    """
    launch.check_values()
    pointers = {key: name if name is None or arrays is None else arrays[name] for key, name in launch.arrays.items()}
    strided = {key: type(own)(pointers[key], *own[1:]) for key, own in launch.strided.items()}
    values = {**launch.scalars, **launch.constants, **pointers, **strided}
    values |= {name: of(*map(values.__getitem__, of._fields)) for name, of in launch.together.items()}
    return [values[name] for name in launch.kernel.arg_names]


class Job(NamedTuple):
    """All that a binary depends on, beside the kernel."""

    signature: Signature
    arch: Arch
    options: tuple[tuple[str, Any], ...]
    thread_wise: bool


class NotCachedError(Exception):
    """Raised in place of compiling."""


def source_of(kernel: Any, job: Job) -> ASTSource:
    """A kernel as Triton compiles it."""
    sig = job.signature
    hints = {path: [["tt.divisibility", divisor]] for path, divisor in sig.hints}
    source = GluonASTSource if kernel.is_gluon() else ASTSource
    return source(kernel, dict(sig.types), dict(sig.constants), hints)


def compile_source(source: ASTSource, job: Job) -> Any:
    """The binary, from Triton's cache on disk or compiled now."""
    read = source.make_ir

    def read_alone(*arguments: Any) -> Any:
        with READING:
            return read(*arguments)

    source.make_ir = read_alone
    with coalescing(not job.thread_wise):
        return triton.compile(source, target=job.arch.target, options=dict(job.options))


def compile_job(kernel: Any, job: Job) -> Any:
    """The binary of a kernel; what a process of `apart` does."""
    settle(kernel)
    return compile_source(source_of(kernel, job), job)


def cached(kernel: Any, job: Job) -> Any:
    """The binary of a kernel from Triton's cache on disk; None where it is not there."""

    def refuse(*_: Any) -> Any:
        raise NotCachedError

    source = source_of(kernel, job)
    source.make_ir = refuse  # which Triton calls for what is not cached
    try:
        return compile_source(source, job)
    except NotCachedError:
        return None


@Ahead
def _driver() -> Any:
    """Triton's driver; where its cache is empty, a C compiler makes a part of it."""
    return triton.runtime.driver.active


def _launchable(compiled: Any, device: int | None) -> Any:
    if device is not None:  # so that the C function which launches it is in the cache, where `compiled.run` looks
        _driver().launcher_cls(compiled.src, compiled.metadata)
    return compiled


def _compile(kernel: Any, job: Job, device: int | None) -> Any:
    return _launchable(compile_job(kernel, job), device)


def _compile_apart(kernel: Any, job: Job, device: int | None) -> Any:
    if not apart.possible(kernel):
        return _compile(kernel, job, device)
    compiled = cached(kernel, job)
    if compiled is None:
        apart.run(kernel, job)
        compiled = compile_job(kernel, job)
    return _launchable(compiled, device)


_compiled = Ahead(_compile, _compile_apart)


def _described(launch: Launch, arrays: Mapping[str, Array], arch: Arch, device: int | None) -> tuple[Any, ...]:
    """All that a binary depends on, as `_compile` takes it."""
    # Fused multiply-adds change bits: a later Triton, or a user's environment, would decide otherwise.
    options: dict[str, Any] = {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "enable_fp_fusion": True,
    }
    if launch.overlap:
        options["launch_pdl"] = True
    if launch.max_registers and arch.backend == "cuda":
        options["maxnreg"] = launch.max_registers
    settle(launch.kernel)
    job = Job(signature(launch, arrays), arch, tuple(options.items()), launch.thread_wise)
    return launch.kernel, job, device


def build(launch: Launch, arrays: Mapping[str, Array], arch: Arch, device: int | None = None) -> Any:
    """Compile a launch's kernel for `arch`; needs no GPU.

    Args:
        launch: the launch.
        arrays: the arrays of its program by name.
        arch: the architecture to compile for.
        device: the index of the GPU on which Triton launches it; each has its own result, since a binary is loaded on
            one device. None where Triton launches nothing: in JAX, or without a GPU.

    Returns:
        Triton's `CompiledKernel`: `.asm` has the intermediate code and the binary, `.metadata` the shared memory.
    """
    return _compiled(*_described(launch, arrays, arch, device))


def begin(programs: Iterable[Program], arch: Arch, device: int | None = None) -> None:
    """Compile the launches of programs side by side, in the order in which `build` will ask for them; does not wait.

    Each is compiled in a thread, which has a process do it where there are cores and no binary in Triton's cache. The
    first is left to the caller, who asks for it next: it would only wait while a process starts.
    """
    if device is not None:
        _driver.begin([()])
    launches = [(launch, program.arrays) for program in programs for launch in program.launches if launch.grid]
    _compiled.begin(_described(launch, arrays, arch, device) for launch, arrays in launches[1:])


def descriptor_bytes(launch: Launch, compiled: Any) -> int:
    """Bytes of memory that a launch needs for the tensor descriptors that its CTAs create."""
    return launch.grid * int(getattr(compiled.metadata, "global_scratch_size", 0))
