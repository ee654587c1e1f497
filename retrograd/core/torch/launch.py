"""Runs programs on PyTorch tensors.

To keep the host time of a call small, a program is prepared once for each layout (binaries compiled, argument lists
built); a call then only allocates its outputs, fills in addresses and launches.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad

from ..arch import Arch, amd, nvidia
from ..program import Array, Descriptor, Launch, Layout, Program, dense

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("bfloat16", "float16", "float32", "float64", "complex64", "complex128", "int32", "int64", "uint8")
}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

KEPT_DESCRIPTORS = 256  # of a parameter of a kernel
BLOCK_ALIGNMENT = 512  # of scratch arrays, in bytes, as of PyTorch's own allocations

Runner = Callable[[Sequence[Any]], list[Any]]  # from tensors or None to tensors or None
# What starts a launch, with its grid and its arguments around those that a call has to select.
Started = tuple[Any, int, list[Any], int, list[Any], Callable[[Any], tuple[Any, ...]], list[Any]]

# All that a plan may depend on: shape, strides, dtype, device, and address modulo 16. A plain tuple, since every call
# builds one for each tensor; calls with equal keys share a prepared program.
Key = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device, int]


@cache
def arch_of(device: torch.device) -> Arch | None:
    """The architecture of a device, or None where no kernel can run there."""
    if device.type != "cuda":
        return None
    try:
        import triton  # noqa: F401
    except ImportError:
        return None
    if torch.version.hip:
        return amd(torch.cuda.get_device_properties(device).gcnArchName)
    return nvidia(*torch.cuda.get_device_capability(device))


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name; for a dtype that the library does not know, torch's name without the prefix."""
    return NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def concrete(option: Any) -> Any:
    """An option's value: the name of a dtype, and the number for a symbol from a graph traced with dynamic shapes."""
    if isinstance(option, torch.SymInt):
        return int(option)
    if isinstance(option, torch.SymFloat):
        return float(option)
    if isinstance(option, tuple):
        return tuple([concrete(item) for item in option])
    return dtype_name(option) if isinstance(option, torch.dtype) else option


def key(tensor: torch.Tensor) -> Key:
    """A tensor's key."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() & 15


def layouts(names: Sequence[str], keys: Sequence[Key | None]) -> dict[str, Layout]:
    """The layout of each present tensor, by name."""
    return {
        name: Layout(tuple(key[1]), aligned=key[4] == 0)
        for name, key in zip(names, keys, strict=True)
        if key is not None
    }


PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def launches_directly(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether a call may launch its kernels itself, without PyTorch's dispatcher.

    Not while a graph is traced, under a dispatch mode or a function transform, in forward mode, for a subclass of
    Tensor (a fake tensor, a DTensor) or for a view with a lazy negation or conjugation: these need the registered
    operator, which takes more host time for the same results, or the portable formulas.
    """
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return False
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in PLAIN or tensor.is_neg() or tensor.is_conj()):
            return False
    return not (torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None)


def prepare(
    program: Program, inputs: Sequence[str], outputs: Sequence[str | None], arch: Arch, device: torch.device
) -> Runner:
    """Compile a program for a device and return the function that runs it.

    Args:
        program: the launches.
        inputs: names of the tensors passed to the runner, in order; the program reads some of them.
        outputs: names of the tensors that the runner returns, in order; the program returns some of them.
        arch: the device's architecture.
        device: a GPU, with its index.

    Returns:
        A function from the input tensors to the output tensors, with None for what the program does not read or
        compute.
    """
    from ..build import arguments, begin, build, descriptor_bytes

    index = device.index
    begin([program], arch, index)
    kept = program.returned
    allocations = [(array.shape, dense(array.shape), DTYPES[array.dtype]) for array in kept]
    zeroed = [place for place, array in enumerate(kept) if array.zeroed]
    by_name = {array.name: array for array in program.inputs}
    read = [place for place, name in enumerate(inputs) if name in by_name]
    copied = [place for place in read if by_name[inputs[place]].copied]
    own = [array.name for array in kept]
    # What is a part of a larger array, or of a block of scratch arrays, has no tensor of its own, only an address.
    parts = [array for array in program.outputs if array.part]
    offsets = [(own.index(array.whole.name), array.offset * DTYPES[array.dtype].itemsize) for array in parts]
    scratch: list[str] = []
    for block in blocks_of(program.scratch):
        if block.zeroed:
            zeroed.append(len(allocations))
        for name, offset in block.offsets.items():
            scratch.append(name)
            offsets.append((len(allocations), offset))
        allocations.append(((block.nbytes,), (1,), torch.uint8))
    names = (*(inputs[i] for i in read), *(array.name for array in parts), *scratch, *own)
    places = {name: place for place, name in enumerate(names)}
    first_own = len(names) - len(own)  # the place of the first tensor that a call allocates
    # Index -1, for what the program does not compute, is the None after the last tensor.
    returned = [next((i for i, array in enumerate(kept) if array.name == name), -1) for name in outputs]

    absent = -1

    def compiled_launches(launches: Iterable[Launch]) -> list[Started]:
        steps = []
        with torch.cuda.device(device):
            for launch in launches:
                if launch.grid == 0:
                    continue
                compiled = build(launch, program.arrays, arch, index)
                start, first, then = launcher(compiled)
                descriptors = absent
                if size := descriptor_bytes(launch, compiled):
                    descriptors = first_own + len(allocations)
                    allocations.append(((size,), (1,), torch.uint8))
                at = {key: absent if name is None else places[name] for key, name in launch.arrays.items()}
                select = selection(launch, compiled, at)
                last = arguments(launch)[len(with_pointers(launch)) :]
                steps.append((start, launch.grid, first, descriptors, then, select, last))
        return steps

    steps = compiled_launches(program.launches)

    @cache
    def early_steps() -> list[Started]:
        """The launches that read an input early; of one that is copied the copy has just been written."""
        early = [launch.early is not None and not by_name[launch.early].copied for launch in program.launches]
        if not any(early):
            return steps
        pairs = zip(program.launches, early, strict=True)
        return compiled_launches(reading_early(launch) if reads else launch for launch, reads in pairs)

    empty = torch.empty_strided
    stream_of = torch._C._cuda_getCurrentRawStream
    current_device = torch.cuda.current_device

    def launch_all(tensors: Sequence[Any]) -> list[Any]:
        chosen = early_steps() if STEADY.weights else steps
        if copied:
            tensors = [dense_copy(tensor) if i in copied else tensor for i, tensor in enumerate(tensors)]
        new: list[Any] = [empty(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in allocations]
        for i in zeroed:
            new[i].zero_()
        addresses: list[Any] = [tensors[i].data_ptr() for i in read]
        for i, offset in offsets:
            addresses.append(new[i].data_ptr() + offset)
        addresses += [tensor.data_ptr() for tensor in new]
        addresses.append(None)
        stream = stream_of(index)
        for start, grid, first, descriptors, then, select, last in chosen:
            start(grid, 1, 1, stream, *first, addresses[descriptors], *then, *select(addresses), *last)
        new.append(None)
        return [new[i] for i in returned]

    def guarded(tensors: Sequence[Any]) -> list[Any]:
        if current_device() == index:
            return launch_all(tensors)
        with torch.cuda.device(device):
            return launch_all(tensors)

    return guarded if torch.cuda.device_count() > 1 else launch_all


class Block(NamedTuple):
    """Scratch arrays that a call allocates as one.

    Attributes:
        offsets: of each array, in bytes.
        nbytes: of all.
        zeroed: whether they are filled with zeros.
    """

    offsets: dict[str, int]
    nbytes: int
    zeroed: bool


def blocks_of(scratch: Iterable[Array]) -> list[Block]:
    """The scratch arrays of a program in at most two blocks: one allocation takes as long as any other."""
    apart = "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ  # a sanitizer finds accesses beyond an allocation
    blocks: dict[object, list[Array]] = {}
    for array in scratch:
        blocks.setdefault(array.name if apart else array.zeroed, []).append(array)
    found = []
    for arrays in blocks.values():
        sizes = [-(-array.nbytes // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT for array in arrays]
        starts = accumulate(sizes, initial=0)
        offsets = {array.name: start for array, start in zip(arrays, starts, strict=False)}
        found.append(Block(offsets, sum(sizes), arrays[0].zeroed))
    return found


class Steady(threading.local):
    """Of a thread.

    Attributes:
        weights: whether kernels may read their weights before the kernel before them has ended.
    """

    weights: bool = False


STEADY = Steady()


@contextmanager
def steady_weights() -> Iterator[None]:
    """Kernels of this thread may read their weights early: nothing within it writes weights, nor just before it.

    A kernel that overlaps the one before it waits for its end before it reads results. That one has waited for the end
    of its own predecessor, so that only the very last kernel can still be writing. What was captured in a CUDA graph
    keeps reading early; between two graphs nothing overlaps.
    """
    before, STEADY.weights = STEADY.weights, True
    try:
        yield
    finally:
        STEADY.weights = before


def reading_early(launch: Launch) -> Launch:
    """The launch with its constant EARLY."""
    return replace(launch, constants={**launch.constants, "EARLY": True})


class Launcher:
    """Runs programs on the GPU."""

    def arch_of(self, device: torch.device) -> Arch | None:
        """The architecture for which calls on a device are planned; None where the portable path runs."""
        return arch_of(device)

    def prepare(
        self,
        program: Program,
        inputs: Sequence[str],
        outputs: Sequence[str | None],
        arch: Arch,
        device: torch.device,
    ) -> Runner:
        """The function that runs a program on tensors; see `prepare`."""
        return prepare(program, inputs, outputs, arch, device)

    def begin(self, programs: Sequence[Program], arch: Arch, device: torch.device) -> None:
        """Compile programs that will be prepared soon, without waiting for it."""
        from ..build import begin

        begin(programs, arch, device.index)


class Described:
    """A tensor descriptor as Triton's launcher takes it: an address with the shape and strides of a view.

    It has the attributes of Triton's own `TensorDescriptor`, whose base is a tensor.
    """

    __slots__ = ("address", "block_shape", "shape", "strides")
    padding = "zero"
    round_f32_to_tf32 = False

    def __init__(self, address: int, descriptor: Descriptor) -> None:
        self.address = address
        self.shape = descriptor.shape
        self.strides = descriptor.strides
        self.block_shape = descriptor.block

    @property
    def base(self) -> Described:
        """What has the address."""
        return self

    def data_ptr(self) -> int:
        """The address."""
        return self.address


def with_pointers(launch: Launch) -> list[str]:
    """The kernel's first parameters, which have its pointers."""
    return [name for name in launch.kernel.arg_names if name in launch.arrays or name in launch.together]


def selection(launch: Launch, compiled: Any, places: Mapping[str, int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """The function from all addresses to what the kernel takes of them: addresses, tensor descriptors, tuples of an
    address and strides, and tuples of these.

    It is compiled from an expression, as those of `collections.namedtuple` are: a loop over arrays would take longer
    in every call.
    """
    described = [name for name in launch.pointers if name in launch.descriptors]
    encoders = {
        f"encode_{name}": encoder(launch.descriptors[name], compiled, number) for number, name in enumerate(described)
    }

    def expression(name: str) -> str:
        if name in launch.together:
            return f"({', '.join(map(expression, launch.together[name]._fields))},)"
        address = f"addresses[{places[name]}]"
        if name in launch.descriptors:
            return f"*encode_{name}({address})"
        if name in launch.strided:
            return f"({', '.join([address, *map(repr, launch.strided[name][1:])])})"
        return address

    parts = ", ".join(map(expression, with_pointers(launch)))
    select: Callable[[Sequence[Any]], tuple[Any, ...]] = eval(f"lambda addresses: ({parts},)", encoders)
    return select


def encoder(descriptor: Descriptor, compiled: Any, number: int) -> Callable[[int], Sequence[Any]]:
    """The function from an array's address to what a launch takes for its descriptor, the kernel's `number`-th.

    Encoding takes longer than the rest of a launch, and addresses come again, so those that were encoded are kept.
    """
    if not launches_in_c(compiled):
        return lambda address: (Described(address, descriptor),)
    from triton.backends.nvidia.driver import make_tensordesc_arg

    metas = compiled.metadata.tensordesc_meta
    meta = metas[number] if metas else None
    return lru_cache(KEPT_DESCRIPTORS)(lambda address: make_tensordesc_arg(Described(address, descriptor), meta))


def dense_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy of the tensor."""
    return tensor.clone(memory_format=torch.contiguous_format)


def launches_in_c(compiled: Any) -> bool:
    """Whether Triton's C function launches a binary, without the Python around it, which other releases may lack."""
    import triton

    return triton.__version__.startswith("3.6.") and hasattr(compiled.run, "launch_pdl")


def launcher(compiled: Any) -> tuple[Any, list[Any], list[Any]]:
    """The function that launches a binary, and its arguments between the stream and the kernel's own, in two lists.

    Between the two lists it takes the address of memory for the kernel's tensor descriptors, or None.

    `compiled.run` (which also loads the binary) takes the same arguments in every supported release of Triton. In 3.6
    it is a Python object that allocates that memory by a callback, encodes the descriptors that the host passes, and
    then calls a C function; here that C function is called directly.
    """
    import triton

    run = compiled.run
    common = [compiled.packed_metadata, None, None, None]
    if launches_in_c(compiled):
        if run.profile_scratch_size:
            raise RuntimeError(f"{compiled.name}: a kernel that is profiled cannot be launched directly")
        wrapped = inspect.isfunction(run.launch)
        function = inspect.getclosurevars(run.launch).nonlocals["launcher"] if wrapped else run.launch
        return function, [compiled.function, run.launch_cooperative_grid, run.launch_pdl], [None, *common]

    allocates = bool(getattr(compiled.metadata, "global_scratch_size", 0))
    # Held until this launch's next call on the stream: an overlapping next kernel must not get the same memory.
    held: dict[int, torch.Tensor] = {}

    def start(gx: int, gy: int, gz: int, stream: int, function: int, _: int | None, *rest: Any) -> None:
        if allocates:

            def memory(size: int, *_: Any) -> torch.Tensor:
                held[stream] = torch.empty(size, dtype=torch.uint8, device="cuda")
                return held[stream]

            triton.set_allocator(memory)
        run(gx, gy, gz, stream, function, *rest)

    return start, [compiled.function], common


def unwritten(array: Array) -> torch.Tensor:
    """An array's tensor before any kernel writes it: zeros if `zeroed`, else NaN or the largest integer."""
    dtype = DTYPES[array.dtype]
    poison = float("nan") if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).max
    return torch.full(array.shape, 0 if array.zeroed else poison, dtype=dtype)


def interpret(program: Program, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a program in Triton's interpreter on CPU tensors; the process must have started with TRITON_INTERPRET=1.

    Outputs and scratch start as NaN, integers as the largest one, to reveal elements that no kernel wrote. Returned are
    the arrays of `program.returned`.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    from ..build import arguments

    allocated = {array.name: unwritten(array) for array in (*program.returned, *program.scratch)}
    parts = {a.name: allocated[a.whole.name].select(a.part.axis, a.part.index) for a in program.outputs if a.part}
    tensors = [dense_copy(t) if array.copied else t for array, t in zip(program.inputs, tensors, strict=True)]
    # A kernel sees a complex number as two floats.
    read = {array.name: tensor for array, tensor in zip(program.inputs, tensors, strict=True)}
    everything = {**read, **allocated, **parts}
    by_name = {name: torch.view_as_real(t) if t.is_complex() else t for name, t in everything.items()}
    for launch in program.launches:
        if launch.grid == 0:
            continue
        # The interpreter runs launches one after the other and does not know the instructions for overlap.
        constants = {name: False if name == "OVERLAP" else value for name, value in launch.constants.items()}
        launch = replace(launch, constants=constants, overlap=False)
        values = arguments(launch, by_name)
        for place, name in enumerate(launch.kernel.arg_names):
            if (descriptor := launch.descriptors.get(name)) is not None:
                shape, strides, block = map(list, (descriptor.shape, descriptor.strides, descriptor.block))
                values[place] = TensorDescriptor(values[place], shape, strides, block)
        launch.kernel[(launch.grid,)](*values, num_warps=launch.num_warps, num_stages=launch.num_stages)
    return [allocated[array.name] for array in program.returned]
