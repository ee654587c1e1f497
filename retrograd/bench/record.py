"""Builds rows of measurements and emits each immediately."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo, Pass

from .environment import Stamp, versions
from .limits import COPY_BYTES, EXPS, MATMUL_SIZE, Limits
from .measure import How, Timing
from .peers import Peer
from .results import LIMITS, Row

COMMON = {"torch": ("torch", "triton"), "jax": ("jax", "jaxlib", "triton")}
# The `impl` of the limits, the timing of the copy, and the timing of the other limits.
LIMITS_BY: dict[str, tuple[str, How, How]] = {"torch": ("torch", "events", "graph"), "jax": ("xla", "wall", "wall")}


@dataclass
class Record:
    """Emits the rows of a run.

    Attributes:
        info: the op.
        framework: `torch` or `jax`.
        stamp: the fields that all rows share.
        limits: the machine's limits in this run.
        emit: called with each row.
        note: called with a line about each omitted peer, once for each reason.
    """

    info: OpInfo
    framework: Literal["torch", "jax"]
    stamp: Stamp
    limits: Limits
    emit: Callable[[Row], None]
    note: Callable[[str], None]
    _noted: set[tuple[str, str]] = field(default_factory=set)

    def add_limits(self) -> None:
        """Add the rows of the limits, the first rows of a run."""
        impl, copied, computed = LIMITS_BY[self.framework]
        size = MATMUL_SIZE
        for case, shape, dtype, ms, bound, how in (
            ("copy", {"bytes": COPY_BYTES}, "uint8", self.limits.copy_ms, "bytes", copied),
            ("matmul", {"M": size, "N": size, "K": size}, "bfloat16", self.limits.matmul_ms, "flops", computed),
            ("exp", {"N": EXPS}, "float32", self.limits.exp_ms, "exp", computed),
        ):
            self._add(LIMITS, case, shape, dtype, "fwd", impl, None, Timing(ms, how), None, (ms, bound))

    def add(self, case: Case, which: Pass, peer: Peer, timing: Timing, host_us: float | None) -> None:
        """Add the row of a timed pass of a case."""
        exps = self.info.exps(case, which) if self.info.exps else 0
        limit = self.limits.of(self.info.bytes_moved(case, which), self.info.flops(case, which), exps)
        self._add_case(case, which, peer, timing, host_us, limit)

    def add_host(self, case: Case, peer: Peer, host_us: Mapping[str, float]) -> None:
        """Add rows that have only host times, for the passes of the tiny case on which they were measured."""
        for which, microseconds in host_us.items():
            self._add_case(case, which, peer, None, microseconds, None)

    def leave_out(self, case: Case, peer: Peer, reason: str) -> None:
        """Note why a peer has no row."""
        if (peer.name, reason) not in self._noted:
            self._noted.add((peer.name, reason))
            self.note(f"{peer.name} is left out (first at {case.name}): {reason}")

    def _add_case(
        self,
        case: Case,
        which: str,
        peer: Peer,
        timing: Timing | None,
        host_us: float | None,
        limit: tuple[float, str] | None,
    ) -> None:
        dtype = next(iter(case.inputs.values())).dtype
        name = peer.name
        self._add(self.info.name, case.name, case.shape, dtype, which, name, peer.distribution, timing, host_us, limit)

    def _add(
        self,
        op: str,
        case: str,
        shape: Mapping[str, int],
        dtype: str,
        which: str,
        impl: str,
        distribution: str | None,
        timing: Timing | None,
        host_us: float | None,
        limit: tuple[float, str] | None,
    ) -> None:
        common = COMMON[self.framework]
        self.emit(
            Row(
                op=op,
                case=case,
                shape=dict(shape),
                dtype=dtype,
                pass_=which,
                impl=impl,
                framework=self.framework,
                device_ms=timing.ms if timing else None,
                host_us=host_us,
                limit_ms=limit[0] if limit else None,
                bound=limit[1] if limit else None,
                gpu=self.stamp.gpu,
                versions=versions(dict.fromkeys((*common, distribution) if distribution else common)),
                commit=self.stamp.commit,
                date=self.stamp.date,
                timing=timing.how if timing and timing.how != "graph" else None,
            )
        )
