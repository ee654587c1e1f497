"""The processes that train one run together, as `torchrun` starts them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from retrograd.distributed import Slots, Tree, all_reduce_

T = TypeVar("T")
PATIENCE = 3.0  # seconds, for a sign of life of another process
GONE = "gone"  # the key of the store under which the first process to find it says who is
CONNECTION = "a connection to another process is"  # where none is gone


class LostError(RuntimeError):
    """Other processes of the run are gone; the message names their ranks."""


class Ranks(NamedTuple):
    """The processes of a run.

    Attributes:
        world: W, their number.
        rank: of this one.
        local: its number on this machine, which is also that of its GPU.
        store: where processes leave signs of life; None for a single process.
        control: a group whose messages are of the CPU, in which hosts agree without waiting for a GPU.
        heard: who is gone, once another process has found it.
    """

    world: int = 1
    rank: int = 0
    local: int = 0
    store: dist.Store | None = None
    control: dist.ProcessGroup | None = None
    heard: Sequence[str] = ()

    @property
    def first(self) -> bool:
        """Whether this process writes the run's files."""
        return self.rank == 0

    def slots(self, count: int, parts: int = 1) -> Slots:
        """The slots of this process, of a batch that has `count`.

        With several parts each slot is divided over as many processes. The first parts of all slots come first, then
        the second ones, so that a process has parts of one number; slot n is that of the parts n, n + count, ...

        Raises:
            ValueError: for a number of processes that does not fit.
        """
        if self.world % parts:
            expected = f"a multiple of {parts}, which divide each sequence"
            raise ValueError(f"the number of processes is {self.world}, expected {expected}")
        return Slots(count * parts, self.world, self.rank)

    def beside(self, parts: int) -> dist.ProcessGroup | None:
        """The processes that have the other parts of this one's slots, in the order of parts; None where it has all."""
        if parts == 1:
            return None
        step = self.world // parts
        groups = [dist.new_group(range(first, self.world, step)) for first in range(step)]  # each is made by all
        group: dist.ProcessGroup = groups[self.rank % step]
        return group

    def of_first(self, value: T | None) -> T:
        """The value that the first process passes, in all of them."""
        if self.world > 1:
            held: list[Any] = [value]
            self.together(lambda: dist.broadcast_object_list(held, src=0, group=self.control))
            value = held[0]
        assert value is not None
        return value

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        if self.world == 1:
            return here
        flag = torch.tensor([int(here)])
        self.together(lambda: dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.control))
        return bool(flag.item())

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes in its fixed order, in place."""
        self.together(lambda: all_reduce_(tensor))
        return tensor

    def together(self, call: Callable[[], Any]) -> None:
        """A call that all processes make.

        Raises:
            LostError: one of them is gone.
        """
        try:
            call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise lost(self._gone(), error) from None

    def between(self, call: Callable[[], T]) -> T:
        """A call of which some parts are made by several processes together.

        Raises:
            LostError: one of them is gone; any other error is the call's own.
        """
        try:
            return call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if self.world == 1 or (gone := self._gone()) == CONNECTION:
                raise
            raise lost(gone, error) from None

    def _gone(self) -> str:
        """The processes that give no more signs of life, as a subject; the first to find them says so to all others."""
        assert self.store is not None
        try:
            before = self._beats(self.store)
            time.sleep(PATIENCE)
            silent = [str(rank) for rank, beats in enumerate(self._beats(self.store)) if beats == before[rank]]
            if not silent:
                return self.heard[0] if self.heard else CONNECTION
            gone = f"rank {silent[0]} is" if len(silent) == 1 else f"ranks {', '.join(silent)} are"
            gone = self.store.compare_set(GONE, "", gone).decode()
            self._wait_for_others(self.store, len(silent))
        except RuntimeError:
            return self.heard[0] if self.heard else "rank 0, which kept the store, is"
        return gone

    def _beats(self, store: dist.Store) -> list[int]:
        return [store.add(beats_of(rank), 0) for rank in range(self.world)]

    def _wait_for_others(self, store: dist.Store, silent: int) -> None:
        """The store ends with the first process, which waits until the others have read it."""
        here, end = store.add("know", 1), time.monotonic() + 2 * PATIENCE
        while self.first and here < self.world - silent and time.monotonic() < end:
            time.sleep(0.1)
            here = store.add("know", 0)


def lost(gone: str, error: RuntimeError) -> LostError:
    """Who is gone, as a subject, and how a call has failed."""
    return LostError(f"{gone} gone: {str(error).splitlines()[0]}")


def beats_of(rank: int) -> str:
    """The key of the store under which a process counts its signs of life."""
    return f"beats-{rank}"


@contextmanager
def beating(store: dist.Store, rank: int) -> Iterator[list[str]]:
    """Give signs of life, and hear who is gone, in a thread, while this one may wait for other processes."""
    own: dist.Store = store.clone()  # type: ignore[attr-defined]  # one that is waited at answers no other call
    stopped, heard = threading.Event(), list[str]()

    def beat() -> None:
        while not stopped.wait(PATIENCE / 6):
            with suppress(RuntimeError):  # the process that keeps the store may be gone
                own.add(beats_of(rank), 1)
                if not heard and own.check([GONE]):
                    heard.append(own.get(GONE).decode())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        stopped.set()
        thread.join(PATIENCE)  # a store whose process is gone may not answer


def total_of(losses: Tree[Tensor], ranks: Ranks) -> Tensor:
    """The sum of all slots' losses, of which `losses` has this process's."""
    own = losses.total().reshape(1)
    return (own if ranks.world == 1 else ranks.sum_(own))[0]


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The processes that `torchrun` has started, by the environment that it sets; one, where it has not.

    Args:
        device: `cpu`, where they talk by gloo, or `cuda`, by NCCL.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda":
        torch.cuda.set_device(local)
    store, rank, world = next(dist.rendezvous("env://"))
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=rank, world_size=world)
    try:
        with beating(store, rank) as heard:
            yield Ranks(world, rank, local, store, dist.new_group(backend="gloo"), heard)
    finally:
        dist.destroy_process_group()
