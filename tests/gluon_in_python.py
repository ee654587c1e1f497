"""Runs Gluon kernels whose warps have different work on a CPU, with NumPy, in any order of what runs side by side.

Gluon has no interpreter. Here the functions of a kernel run as they are written, on other names: arrays are NumPy's,
each group of warps is a thread, and copies by TMA and products are done at any time before they are waited for. One
thread runs at a time; at each barrier and counter a random one goes on. Found are deadlocks, products that are used
before they are waited for, wrong indices, and in some orders shared memory that is used again too early. It knows
neither registers nor layouts, nor which memory accesses other threads see.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from checks.interpreter import in_order
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.language import constexpr

MOST_TURNS = 2_000_000  # of all threads of a kernel
RESIDENT = 3  # programs that run at a time, at most


class Stuck(AssertionError):
    """No thread can go on."""


class Array(np.ndarray):
    """A tensor in registers."""

    type = SimpleNamespace(layout=None)

    def to(self, dtype: Any, bitcast: bool = False) -> Array:
        if bitcast:
            return np.ascontiguousarray(self).view(dtype).view(Array)
        with np.errstate(over="ignore"):
            return self.astype(dtype).view(Array)

    def permute(self, *order: int) -> Array:
        return self.transpose(*order)

    def split(self) -> tuple[Array, Array]:
        return self[..., 0].view(Array), self[..., 1].view(Array)


def array(values: Any) -> Any:
    """Values as a tensor, or as one of Python's numbers if there is but one."""
    values = np.asarray(values)
    return values.view(Array) if values.ndim else values.item()


class Pointer:
    """An address, or a tensor of addresses, in elements."""

    def __init__(self, memory: np.ndarray, at: Any) -> None:
        self.memory, self.at = memory, at
        self.dtype = SimpleNamespace(element_ty=memory.dtype.type)

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.at + other)

    def __sub__(self, other: Any) -> Pointer:
        return self + -other


class Memory:
    """A buffer in shared memory, or a part of one."""

    type = Array.type

    def __init__(self, data: np.ndarray) -> None:
        self.data, self.shape, self.dtype = data, list(data.shape), data.dtype.type

    def index(self, i: int) -> Memory:
        assert 0 <= i < len(self.data)
        return Memory(self.data[i])

    def slice(self, start: int, length: int, dim: int = 0) -> Memory:
        assert 0 <= start <= start + length <= self.shape[dim]
        return Memory(self.data[(slice(None),) * dim + (slice(start, start + length),)])

    def reshape(self, shape: list[int]) -> Memory:
        data = self.data.view()
        data.shape = tuple(shape)  # raises where that would copy
        return Memory(data)

    def _reinterpret(self, dtype: Any, shape: list[int], _layout: Any) -> Memory:
        data = self.data.view()
        data.shape = (-1,)
        return Memory(data.view(dtype)[: int(np.prod(shape))].reshape(shape))

    def permute(self, order: tuple[int, ...]) -> Memory:
        return Memory(self.data.transpose(order))

    def load(self, _layout: Any) -> Array:
        return self.data.copy().view(Array)

    def store(self, values: Any) -> None:
        assert list(values.shape) == self.shape, (values.shape, self.shape)
        self.data[...] = values


class Barrier:
    """An mbarrier."""

    def __init__(self) -> None:
        self.count = self.pending = self.bytes = self.phases = 0

    def change(self, arrivals: int, bytes_: int) -> None:
        assert self.count, "not initialised"
        self.pending -= arrivals
        self.bytes += bytes_
        assert self.pending >= 0, "more arrivals than there are to be"
        if self.pending == 0 and self.bytes == 0:
            self.phases, self.pending = self.phases + 1, self.count


class Barriers:
    """A row of mbarriers."""

    def __init__(self, number: int) -> None:
        self.all, self.shape = [Barrier() for _ in range(number)], [number, 1]

    def index(self, i: int) -> Barrier:
        assert 0 <= i < len(self.all)
        return self.all[i]


class NamedBarrier:
    """A barrier of the hardware."""

    def __init__(self) -> None:
        self.arrived = self.phases = 0

    def arrive(self, own: int, threads: int) -> None:
        self.arrived += own
        assert self.arrived <= threads, "threads arrive that have arrived before"
        if self.arrived == threads:
            self.arrived, self.phases = 0, self.phases + 1


class Tensor:
    """A tensor descriptor."""

    def __init__(self, base: Pointer, size: Any, strides: Any, block_shape: Any, _layout: Any = None) -> None:
        self.memory, self.start = base.memory, base.at
        self.size = self.shape = size
        self.strides, self.block_shape = strides, list(block_shape)
        self.dtype, self.layout = self.memory.dtype.type, None
        bytes_ = int(np.prod(self.block_shape)) * self.memory.itemsize
        self.block_type = SimpleNamespace(nbytes=bytes_, shape=self.block_shape)

    def places(self, at: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Where the elements of a block are in memory, and which of them there are."""
        assert int(at[-1]) * self.memory.itemsize % 16 == 0, f"a GPU copies no block from column {at[-1]} on"
        address, there = np.zeros((), np.uint64), np.ones((), bool)
        for first, length, size, stride in zip(at, self.block_shape, self.size, self.strides, strict=True):
            own = int(first) + np.arange(length, dtype=np.int64)
            address = address[..., None] + own.astype(np.uint64) * np.uint64(stride % 2**64)
            there = there[..., None] & (own >= 0) & (own < size)
        return (address % np.uint64(2**62)).astype(np.int64) + self.start, there

    def read(self, at: list[Any]) -> np.ndarray:
        place, there = self.places(at)
        return np.where(there, self.memory[np.where(there, place, 0)], self.memory.dtype.type(0))

    def write(self, at: list[Any], values: np.ndarray, add: bool) -> None:
        place, there = self.places(at)
        own = values.reshape(self.block_shape)[there]
        self.memory[place[there]] = self.memory[place[there]] + own if add else own


def flat(tensor: torch.Tensor) -> tuple[np.ndarray, int]:
    """All memory of a tensor, and where its first element is in it."""
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return whole.numpy(), int(tensor.storage_offset())


class Product:
    """A product that has begun."""

    def __init__(self, a: Any, b: Memory, acc: Any, use_acc: bool) -> None:
        self.operands: tuple[Any, Memory, Any, bool] | None = (a, b, acc, use_acc)
        self.value: Any = None

    def compute(self) -> None:
        if self.operands is not None:
            a, b, acc, use_acc = self.operands
            left = a.data if isinstance(a, Memory) else np.asarray(a)
            if isinstance(acc, Product):  # products run in the order in which they begin
                acc.compute()
                acc = acc.value
            assert acc.shape == (*left.shape[:-1], b.shape[-1])
            start = np.asarray(acc) if use_acc else np.zeros_like(acc)
            self.value, self.operands = in_order(left, b.data, start).view(Array), None


class Thread:
    """A group of warps, or a program before its groups."""

    def __init__(self, work: Callable[[], Any], program: int) -> None:
        self.program = program
        self.size = 128  # of its own threads
        self.turn = threading.Semaphore(0)
        self.condition: Callable[[], bool] | None = None
        self.done = False
        self.products: list[Product] = []
        self.unread = self.unwritten = 0  # copies from shared memory
        self.machine = machine()
        self.haste = self.machine.random.choice((0.02, 1.0))  # how likely it goes on before others
        self.thread = threading.Thread(target=self.run, args=(work,), daemon=True)

    def run(self, work: Callable[[], Any]) -> None:
        self.turn.acquire()
        current.thread = self
        try:
            work()
        except BaseException as error:
            self.machine.errors.append(error)
        self.done = True
        self.machine.back.release()


current = threading.local()
the: list[Machine] = []


def machine() -> Machine:
    """The one at work."""
    return the[-1]


class Machine:
    """Runs a kernel: threads, and copies on their way."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.haste = self.random.choice((0.01, 0.5))  # how likely a copy is done while a thread can go on
        self.last = self.random.random()  # how likely the last copy is done before the others
        self.back = threading.Semaphore(0)
        self.threads: list[Thread] = []
        self.copies: list[Callable[[], None]] = []
        self.errors: list[BaseException] = []
        self.programs = 0
        self.named: defaultdict[tuple[int, int], NamedBarrier] = defaultdict(NamedBarrier)  # of a program, a number

    def start(self, work: Callable[[], Any], program: int) -> Thread:
        thread = Thread(work, program)
        self.threads.append(thread)
        thread.thread.start()
        return thread

    def give_way(self, condition: Callable[[], bool] | None = None) -> None:
        """Let others run, until the condition holds."""
        own: Thread = current.thread
        if not self.errors:
            own.condition = condition
            self.back.release()
            own.turn.acquire()
        if self.errors:
            raise SystemExit

    def run(self, programs: list[Callable[[], Any]]) -> None:
        """Run programs, which begin in their order."""
        self.programs = len(programs)
        waiting, resident = list(enumerate(programs)), self.random.randint(1, RESIDENT)
        running: list[Thread] = []
        for _ in range(MOST_TURNS):
            running = [thread for thread in running if not thread.done]
            self.threads = [thread for thread in self.threads if not thread.done]
            while waiting and len(running) < resident:
                program, work = waiting.pop(0)
                running.append(self.start(work, program))
            ready = [thread for thread in self.threads if thread.condition is None or thread.condition()]
            if self.errors or not (ready or self.copies):
                break
            if self.copies and (not ready or self.random.random() < self.haste):
                last = len(self.copies) - 1
                self.copies.pop(last if self.random.random() < self.last else self.random.randint(0, last))()
            else:
                thread = self.random.choices(ready, [each.haste for each in ready])[0]
                thread.condition = None
                thread.turn.release()
                self.back.acquire()
        unfinished = len(self.threads)
        first = next(iter(self.errors), None)
        self.errors.append(SystemExit())  # which ends those that wait
        for thread in self.threads:
            thread.turn.release()
            thread.thread.join()
        if first is not None:
            raise first
        if unfinished or waiting:
            raise Stuck(f"{unfinished} groups of warps wait, {len(waiting)} programs have not begun")


def load_block(tensor: Tensor, at: list[Any], barrier: Barrier, to: Memory) -> None:
    def copy() -> None:
        to.data[...] = tensor.read(at).reshape(to.data.shape)
        barrier.change(0, -tensor.block_type.nbytes)

    machine().copies.append(copy)


def store_block(tensor: Tensor, at: list[Any], source: Memory, add: bool = False) -> None:
    own: Thread = current.thread

    def read() -> None:
        values = source.data.copy()
        own.unread -= 1

        def write() -> None:
            tensor.write(at, values, add)
            own.unwritten -= 1

        machine().copies.append(write)

    own.unread += 1
    own.unwritten += 1
    machine().copies.append(read)


def wait_for_reads(_pending: int) -> None:
    own: Thread = current.thread
    machine().give_way(lambda: own.unread == 0)


def read_turn(pointer: Pointer) -> int:
    machine().give_way()
    return int(pointer.memory[pointer.at])


def pass_turn(pointer: Pointer, turn: int) -> None:
    own: Thread = current.thread
    machine().give_way(lambda: own.unwritten == 0)
    pointer.memory[pointer.at] = turn


def product(a: Any, b: Memory, acc: Any, use_acc: bool = True, is_async: bool = False) -> Product:
    assert is_async
    begun = Product(a, b, acc, use_acc)
    if machine().random.random() < 0.5:
        begun.compute()
    current.thread.products.append(begun)
    return begun


def wait_for_products(pending: int, deps: list[Product]) -> Any:
    machine().give_way()
    products = current.thread.products
    while len(products) > pending:
        products.pop(0).compute()
    # To one that has not ended another may be added, and nothing else be done with it.
    values = tuple(each.value if isinstance(each, Product) and each not in products else each for each in deps)
    return values if len(values) > 1 else values[0]


def atomic_add(pointer: Pointer, value: int, sem: str = "") -> int:
    machine().give_way()
    before = int(pointer.memory[pointer.at])
    pointer.memory[pointer.at] += value
    return before


def load(pointer: Pointer, mask: Any = True, other: Any = 0) -> Any:
    there = np.broadcast_to(mask, np.shape(pointer.at))
    return array(np.where(there, pointer.memory[np.where(there, pointer.at, 0)], other))


def store(pointer: Pointer, values: Any, mask: Any = True) -> None:
    there = np.broadcast_to(mask, np.shape(pointer.at))
    pointer.memory[np.asarray(pointer.at)[there]] = np.broadcast_to(values, there.shape)[there]


def named_arrive(number: int, threads: int) -> None:
    machine().give_way()
    own: Thread = current.thread
    machine().named[own.program, number].arrive(own.size, threads)


def named_sync(number: int, threads: int) -> None:
    machine().give_way()
    own: Thread = current.thread
    barrier = machine().named[own.program, number]
    phase = barrier.phases
    barrier.arrive(own.size, threads)
    machine().give_way(lambda: barrier.phases != phase)


def specialize(groups: list[tuple[Any, tuple[Any, ...]]], warps: list[int], _registers: list[int]) -> None:
    def begin(function: Any, arguments: tuple[Any, ...]) -> Thread:
        return machine().start(lambda: function(*arguments), current.thread.program)

    threads = [begin(function, arguments) for function, arguments in groups]
    for thread, number in zip(threads[1:], warps, strict=True):
        thread.size = 32 * number
    machine().give_way(lambda: all(thread.done for thread in threads))


def allocate(dtype: Any, shape: list[int], layout: Any = None) -> Memory | Barriers:
    if layout == "mbarrier":
        return Barriers(shape[0])
    empty = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else np.nan
    return Memory(np.full(shape, empty, dtype))


def init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.pending = count


def wait(barrier: Barrier, parity: int) -> None:
    machine().give_way(lambda: barrier.phases % 2 != parity)


def arrive(barrier: Barrier, count: int = 1) -> None:
    machine().give_way()
    barrier.change(count, 0)


def layouts(*_: Any, **__: Any) -> None:
    """Any layout."""


def exponential(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return array(np.exp2(np.asarray(x, np.float32)))


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return array(function(*arguments))

    return run


def summed(x: Any, axis: int) -> Any:
    return array(np.sum(x, axis, dtype=x.dtype))


def sums_of_lanes(x: Any, way: str) -> tuple[Any, Any]:
    total = np.repeat(np.sum(x, -1, keepdims=True, dtype=x.dtype), 4, -1)
    after = x[..., ::-1] if ".down." in way else x
    own = np.cumsum(after, -1, dtype=x.dtype)
    own = np.concatenate([np.zeros_like(own[..., :1]), own[..., :-1]], -1)
    own = own[..., ::-1] if ".down." in way else own
    return own.view(Array), total.view(Array)


def decayed(k: Any, q: Any, between: Any) -> tuple[Any, ...]:
    factors = exponential(-np.abs(between))
    return tuple((x.to(np.float32) * factors).astype(x.dtype).view(Array) for x in (k, q))


def scan(x: Any, axis: int, _operation: Any) -> Any:
    if not isinstance(x, tuple):
        return np.cumsum(x, axis, dtype=x.dtype).view(Array)
    sums = np.cumsum(x[0], axis, dtype=x[0].dtype)
    before = np.zeros_like(sums)
    before[1:] = sums[:-1]
    return sums.view(Array), before.view(Array)


def static_assert(condition: bool) -> None:
    assert condition


layouts.get_default_for = layouts  # type: ignore[attr-defined]
GL = SimpleNamespace(
    int16=np.int16, int32=np.int32, int64=np.int64, float32=np.float32, constexpr=None, static_range=range,
    num_warps=lambda: 4, static_assert=static_assert,
    BlockedLayout=layouts, SliceLayout=layouts, NVMMADistributedLayout=layouts, DotOperandLayout=layouts,
    SwizzledSharedLayout=layouts, NVMMASharedLayout=layouts, DistributedLinearLayout=layouts,
    allocate_shared_memory=allocate, broadcast=lambda a, b: tuple(x.view(Array) for x in np.broadcast_arrays(a, b)),
    zeros=lambda shape, dtype, _: np.zeros(shape, dtype).view(Array),
    full=lambda shape, value, dtype, _: np.full(shape, value, dtype).view(Array),
    arange=lambda start, end, _: np.arange(start, end).view(Array),
    convert_layout=lambda x, _, assert_trivial=False: x, reshape=lambda x, shape: x.reshape(shape),
    expand_dims=np.expand_dims, join=lambda a, b: np.stack(np.broadcast_arrays(a, b), -1).view(Array),
    cdiv=lambda a, b: -(-a // b), cast=lambda x, dtype: int(x), where=quiet(np.where), minimum=quiet(np.minimum),
    maximum=quiet(np.maximum), exp2=exponential, rsqrt=quiet(lambda x: 1 / np.sqrt(x)), log2=quiet(np.log2),
    fma=quiet(lambda a, b, c: np.asarray(a * np.float32(b) + c, np.float32)), load=load, store=store,
    atomic_add=atomic_add, max=lambda x, axis: array(np.max(x, axis)), sum=summed,
    associative_scan=scan,
    warp_specialize=specialize, to_tensor=lambda value: value,
    program_id=lambda axis: current.thread.program, num_programs=lambda axis: machine().programs,
)  # fmt: skip
NAMES: dict[str, Any] = {
    "gl": GL,
    "tl": GL,
    "mbarrier": SimpleNamespace(init=init, wait=wait, arrive=arrive, MBarrierLayout=lambda: "mbarrier",
                                expect=lambda barrier, bytes_: barrier.change(1, bytes_)),
    "tma": SimpleNamespace(store_wait=wait_for_reads, make_tensor_descriptor=Tensor),
    "tma_load": load_block,
    "tma_store": store_block,
    "tma_add": lambda tensor, at, source: store_block(tensor, at, source, add=True),
    "fence_async_shared": lambda: None,
    "warpgroup_mma": product,
    "warpgroup_mma_wait": wait_for_products,
    "wait_for_previous": lambda _: None,
    "let_next_start": lambda _: None,
    "forget": lambda number: number,
    "block_barrier": lambda: None,
    "rounded": lambda x, dtype: x.to(dtype),
    "widened": lambda x: x.to(np.float32),
    "scaled": lambda x, factors: (x.to(np.float32) * factors[None, :]).to(x.dtype),
    "decayed": decayed,
    "bring_near": lambda _: None,
    "sums_of_lanes": sums_of_lanes,
    "decay_of": lambda x: exponential(-np.abs(x)),
    "from_lanes": lambda x, keep, add: x[..., (np.arange(4) & keep) | add],
    "in_fp32": lambda x: x.to(np.float32),
    "in_16_bits": lambda x, dtype: x.to(dtype),
    "masked": lambda x, bits, dtype: np.where(bits, x.to(dtype), dtype(0)).view(Array),
    "ex2": exponential,
    "lg2": quiet(np.log2),
    "reciprocal": quiet(lambda x: np.float32(1) / x),
    "before_waits": lambda x: x,
    "arrive": named_arrive,
    "sync": named_sync,
    "read_turn": read_turn,
    "see_writes": lambda turn: turn,
    "pass_turn": pass_turn,
}  # fmt: skip


def in_python(kernel: Any, known: dict[int, Any] | None = None) -> Any:
    """A function of a kernel with the names above, and all functions that it calls."""
    known = {} if known is None else known
    function = kernel.fn
    if id(function) not in known:
        names = dict(function.__globals__)
        known[id(function)] = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        for name in function.__code__.co_names:
            value = names.get(name)
            if name in NAMES:
                names[name] = NAMES[name]
            elif isinstance(value, constexpr):
                names[name] = value.value
            elif hasattr(value, "fn"):
                names[name] = in_python(value, known)
    return known[id(function)]


def argument(value: Any) -> Any:
    """An argument of a launch."""
    if isinstance(value, torch.Tensor):
        return Pointer(*flat(value))
    if hasattr(value, "block_shape"):
        return Tensor(Pointer(*flat(value.base)), value.shape, value.strides, value.block_shape)
    if hasattr(value, "_fields"):
        return type(value)(*map(argument, value))
    return value


@contextmanager
def emulated(seed: int) -> Iterator[None]:
    """A context in which Gluon kernels run so, in an order that the seed decides."""
    usual = GluonJITFunction.run

    def run(kernel: Any, *values: Any, grid: tuple[int, ...], **options: Any) -> None:
        function, arguments = in_python(kernel), list(map(argument, values))
        named = {name: value for name, value in options.items() if name in kernel.arg_names}
        the.append(Machine(seed))
        try:
            machine().run([lambda: function(*arguments, **named)] * grid[0])
        finally:
            the.pop()

    GluonJITFunction.run = run
    try:
        yield
    finally:
        GluonJITFunction.run = usual
