"""A cached function whose results other threads may compute before they are needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any

Key = tuple[Hashable, ...]


class Ahead:
    """A function of hashable arguments, which computes each result once.

    Args:
        function: computes a result.
        begun: computes it in a thread of `begin`, by default `function`; both have the same results.

    Threads live as long as there is work: an idle process has none of them, and one that ends waits for what they are
    at, but begins nothing more. An error is raised where a result is asked for, after another attempt, and nowhere
    else.
    """

    def __init__(self, function: Callable[..., Any], begun: Callable[..., Any] | None = None) -> None:
        self._function = function
        self._begun = begun or function
        self.forget()
        self._start_over()
        os.register_at_fork(after_in_child=self._start_over)

    def forget(self) -> None:
        """Forget all results."""
        self._found: dict[Key, Any] = {}

    def _start_over(self) -> None:
        """Forget what is under way: the child of a fork does not have its parent's threads."""
        self._lock = threading.Lock()
        self._waiting: dict[Key, None] = {}
        self._running: dict[Key, threading.Event] = {}
        self._threads = 0

    def __call__(self, *key: Any) -> Any:
        """The result: found, awaited from the thread that is at it, or computed here."""
        while key not in self._found:
            with self._lock:
                self._waiting.pop(key, None)
                other = self._running.get(key)
                if other is None:
                    self._running[key] = threading.Event()
            if other is None:
                self._compute(key, self._function)
            else:
                other.wait()
        return self._found[key]

    def begin(self, keys: Iterable[Key]) -> None:
        """Compute these results in other threads, as many as there are cores, in this order; does not wait."""
        with self._lock:
            self._waiting.update(dict.fromkeys(key for key in keys if key not in self._found))
            more = min(len(os.sched_getaffinity(0)), len(self._waiting)) - self._threads
            self._threads += max(0, more)
        for _ in range(more):
            threading.Thread(target=self._work, name="retrograd compiles").start()

    def _work(self) -> None:
        while (key := self._next()) is not None:
            with suppress(Exception):
                self._compute(key, self._begun)

    def _next(self) -> Key | None:
        """A result that nobody has begun; None where the thread shall end."""
        with self._lock:
            while self._waiting and threading.main_thread().is_alive():
                key = next(iter(self._waiting))
                del self._waiting[key]
                if key not in self._found and key not in self._running:
                    self._running[key] = threading.Event()
                    return key
            self._threads -= 1
            return None

    def _compute(self, key: Key, function: Callable[..., Any]) -> None:
        try:
            self._found[key] = function(*key)
        finally:
            with self._lock:
                self._running.pop(key).set()
