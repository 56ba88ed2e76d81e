"""What a replica reports to its controller, and the report as a frame has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replica_service.core.health.lifecycle import State
from slotmesh.v1 import membership_service_pb2 as wire
from slotmesh.wire.sendable_text import sendable_text

MAX_END_REASON_CHARS = 300
MAX_REPORTED_CHARS = 16_384
"""Bound of an error or a warning. Of a traceback the end is kept: it says what went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """How the replica does."""

    state: State
    address: str = ""
    """Where routers reach it; empty until it is ready."""
    max_ongoing: int = 0
    error: str = ""
    """What is wrong with it, mostly a traceback."""
    metrics_address: str = ""
    unhealthy: bool = False
    """Its handler should be replaced."""
    reconfigures: bool = False
    """Its handler has a `reconfigure`."""
    warning: str = ""
    """What operators should know although the replica goes on."""
    ended_calls: int = 0
    """Calls that came to the handler, and have ended."""
    failed_calls: int = 0
    """Those of them that have failed for what the handler is."""
    ongoing: int = 0
    """Permits in use."""
    slots: int = 0
    """Of these, slots that are reserved and not used, and those of direct streams."""
    waiting: int = 0
    """What waits for a permit, or in a lane."""
    calls: int = 0
    """Calls executed to their end, since the start of the process; so are the next three."""
    failures: int = 0
    """Calls that ended in a failure, executed or not."""
    batches: int = 0
    batched_calls: int = 0
    times: Sequence[int] = ()
    """Calls that have ended, by the time that they ran, in the buckets of `slotmesh.histogram.CALL_TIMES`."""
    end_reason: str = ""
    """Why it ends, for people; empty while it does not."""
    sampled_at: float = 0.0
    """When the load was as these say, seconds since 1970; 0: there is none yet."""


def report_to_wire(report: MemberReport) -> wire.ReplicaReport:
    """The report as a message."""
    said = wire.ReplicaReport(
        state=report.state.value,  # type: ignore[arg-type]  # the enums share their numbers
        address=report.address,
        max_ongoing=report.max_ongoing,
        error=_end_of(report.error),
        metrics_address=report.metrics_address,
        unhealthy=report.unhealthy,
        reconfigures=report.reconfigures,
        warning=_end_of(report.warning),
        ended_calls=report.ended_calls,
        failed_calls=report.failed_calls,
        end_reason=sendable_text(report.end_reason, MAX_END_REASON_CHARS),
    )
    if report.sampled_at:
        load = said.load
        load.ongoing, load.slots, load.waiting = report.ongoing, report.slots, report.waiting
        load.sample_time.FromMicroseconds(round(report.sampled_at * 1e6))
        totals = load.totals
        totals.calls, totals.failed = report.calls, report.failures
        totals.batches, totals.batched_calls = report.batches, report.batched_calls
        totals.times.extend(report.times)
        totals.SetInParent()  # zeros are known, too
    return said


def _end_of(text: str) -> str:
    return sendable_text(text[-MAX_REPORTED_CHARS:], MAX_REPORTED_CHARS)
