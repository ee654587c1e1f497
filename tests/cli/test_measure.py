"""The logic of the GPU clock on a fake device: captures, repetitions and division."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from retrograd.bench import measure
from retrograd.bench.ahead import compile_case
from retrograd.core.arch import SUPPORTED


class Device:
    """Fake of torch.cuda with a clock that every call and every sleep advances."""

    OutOfMemoryError = MemoryError

    def __init__(self, captures: bool = True) -> None:
        self.now, self.captures, self.calls = 0.0, captures, 0
        self.own = SimpleNamespace(wait_stream=lambda other: None)
        self.default = SimpleNamespace(wait_stream=lambda other: None)
        self.current = self.default

    def call(self) -> object:
        self.calls += 1
        self.now += 3.0
        return object()

    @contextmanager
    def stream(self, stream: Any) -> Any:
        yield

    def current_stream(self) -> Any:
        return self.current

    def default_stream(self) -> Any:
        return self.default

    def Stream(self) -> Any:
        return self.own

    def synchronize(self) -> None: ...

    def _sleep(self, cycles: int) -> None:
        self.now += cycles

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: [self.call() for _ in range(4)])

    @contextmanager
    def graph(self, graph: Any, stream: Any) -> Any:
        assert stream is self.own
        yield
        if not self.captures:
            raise RuntimeError("operation not permitted when stream is capturing")

    def Event(self, enable_timing: bool) -> Any:
        event = SimpleNamespace(at=0.0)
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda end: end.at - event.at
        return event


@pytest.mark.parametrize(("captures", "how"), [(True, "graph"), (False, "events")])
@pytest.mark.parametrize("on_own_stream", [True, False])
def test_device_time(captures: bool, how: str, on_own_stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(captures)
    if on_own_stream:
        device.current = device.own
    monkeypatch.setattr(measure, "torch", SimpleNamespace(cuda=device))
    assert measure.device([device.call] * 4) == (3.0, how)
    # Captured: two calls twice to warm up, the capture, the replays. Otherwise: the failed capture and two more rounds.
    rounds = 2 + measure.REPEATS + (1 if captures else 3)
    assert device.calls == 4 + 4 * rounds


def test_errors_of_a_call_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "torch", SimpleNamespace(cuda=Device()))

    def broken() -> None:
        raise ValueError("broken")

    def greedy() -> None:
        raise MemoryError

    with pytest.raises(ValueError, match="broken"):
        measure.device([broken])
    with pytest.raises(MemoryError):
        measure.device([greedy])


def test_host_time(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(measure, "torch", SimpleNamespace(cuda=device))
    assert 0 < measure.host_us(device.call, repeats=10) < 1e6
    assert device.calls == 30


def test_the_kernels_of_both_passes_are_compiled_ahead() -> None:
    assert compile_case("rms_norm", SUPPORTED["sm_90"], "plain") >= 2
