"""Results that threads compute before they are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from retrograd.core.ahead import Ahead

MOST_SECONDS = 30.0

AT_EXIT = """
import time
from retrograd.core.ahead import Ahead
def compute(x):
    time.sleep(0.2)
    print(x, flush=True)
Ahead(compute).begin((x,) for x in range(1000))
"""


def ended(threads: int) -> None:
    """Wait until no more than so many threads are left."""
    until = time.monotonic() + MOST_SECONDS
    while threading.active_count() > threads:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_each_result_is_computed_once_and_no_thread_stays() -> None:
    computed: list[int] = []
    lock = threading.Lock()

    @Ahead
    def square(x: int) -> int:
        with lock:
            computed.append(x)
        time.sleep(0.01)
        return x * x

    before = threading.active_count()
    square.begin((x,) for x in range(20))
    assert [square(x) for x in range(20)] == [x * x for x in range(20)]
    square.begin((x,) for x in range(20))
    assert sorted(computed) == list(range(20))
    ended(before)


def test_an_error_is_raised_where_the_result_is_asked_for_and_nowhere_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    @Ahead
    def fails(x: int) -> int:
        raise ValueError(x)

    before = threading.active_count()
    fails.begin([(1,), (2,)])
    ended(before)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ValueError, match="2"):
        fails(2)


def test_a_process_that_ends_begins_nothing_more() -> None:
    ran = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True)
    assert len(ran.stdout.splitlines()) <= 2 * len(os.sched_getaffinity(0))
    assert not ran.stderr


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_of_a_fork_computes_what_its_parent_was_at() -> None:
    parent = os.getpid()
    held = threading.Event()

    @Ahead
    def wait(x: int) -> int:
        if os.getpid() == parent:
            held.wait()
        return x

    wait.begin([(1,), (2,), (3,)])
    child = os.fork()
    if not child:
        os._exit(0 if [wait(1), wait(3)] == [1, 3] else 1)
    status = os.waitpid(child, 0)[1]
    held.set()
    assert status == 0
