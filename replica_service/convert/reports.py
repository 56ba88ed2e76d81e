"""Converts the replica's reports, to routers and to the controller, to messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from replica_service.core.call_times import ReportedTime
from replica_service.core.lifecycle import State
from replica_service.core.permits import PermitCapacity
from replica_service.core.session_table import SessionReport
from slotmesh.calls.id_ranges import Range
from slotmesh.calls.method_outlines import MAX_DESCRIBED, MethodOutline, MethodTensors
from slotmesh.convert.batches import ranges_to_wire
from slotmesh.names import sendable_text
from slotmesh.streams.limits import MAX_FRAME_RANGES, MAX_METHODS
from slotmesh.v1 import call_pb2, replica_service_pb2
from slotmesh.v1 import membership_service_pb2 as wire

MAX_END_REASON_CHARS = 300
MAX_REPORTED_CHARS = 16_384
"""Bound of an error or a warning. A longer text keeps its end, where a traceback has the exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """The replica's state and load."""

    state: State
    address: str = ""
    """The address that routers connect to; empty until the replica is ready."""
    max_ongoing: int = 0
    error: str = ""
    """Why it failed or is unhealthy, usually a traceback."""
    metrics_address: str = ""
    unhealthy: bool = False
    """Its handler should be replaced."""
    reconfigures: bool = False
    """Its handler has a `reconfigure`."""
    warning: str = ""
    """A problem that operators should see although the replica continues."""
    ended_calls: int = 0
    """Calls that reached the handler and have ended."""
    failed_calls: int = 0
    """Ended calls whose failure depends on the handler."""
    ongoing: int = 0
    """Permits in use."""
    slots: int = 0
    """Permits in use by slots that are reserved and unused, or held by direct streams."""
    waiting: int = 0
    """Calls that wait for a permit or in a lane."""
    calls: int = 0
    """Calls executed to their end, since the start of the process; so are the next three."""
    failures: int = 0
    """Calls that ended in a failure, executed or not."""
    batches: int = 0
    batched_calls: int = 0
    times: Sequence[int] = ()
    """Ended calls by running time, in the buckets of `slotmesh.histogram.CALL_TIMES`."""
    end_reason: str = ""
    """Why the replica ends, as text for operators; empty while it does not."""
    sampled_at: float = 0.0
    """When the load was sampled, seconds since 1970; 0: no load yet."""


def report_to_wire(report: MemberReport) -> wire.ReplicaReport:
    """Converts the report to its message."""
    message = wire.ReplicaReport(
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
        load = message.load
        load.ongoing, load.slots, load.waiting = report.ongoing, report.slots, report.waiting
        load.sample_time.FromMicroseconds(round(report.sampled_at * 1e6))
        totals = load.totals
        totals.calls, totals.failed = report.calls, report.failures
        totals.batches, totals.batched_calls = report.batches, report.batched_calls
        totals.times.extend(report.times)
        totals.SetInParent()  # present even if all are 0
    return message


def _end_of(text: str) -> str:
    return sendable_text(text[-MAX_REPORTED_CHARS:], MAX_REPORTED_CHARS)


def capacity_to_wire(capacity: PermitCapacity) -> call_pb2.Capacity:
    """A report for one router."""
    return call_pb2.Capacity(
        max_ongoing=capacity.max_ongoing,
        prefetch=capacity.prefetch,
        keyed_window=capacity.keyed_window,
        draining=capacity.draining,
        others=capacity.others,
    )


def service_times_to_wire(times: Iterable[ReportedTime]) -> replica_service_pb2.ServiceTimes:
    """How quickly calls are got through."""
    wire = replica_service_pb2.ServiceTimes()
    for each in times:
        method = wire.methods.add(method=each.method, batch_size=each.batch_size)
        method.service_time.FromNanoseconds(round(each.service_s * 1e9))
    return wire


def outlines_to_wire(outlines: Iterable[MethodOutline]) -> list[replica_service_pb2.MethodOutline]:
    """What methods take and give."""
    wire = replica_service_pb2.MethodOutline
    return [wire(method=it.method, yields=it.yields, schema=it.schema) for it in outlines]


def tensors_to_wire(methods: Iterable[tuple[str, MethodTensors]]) -> list[replica_service_pb2.MethodTensors]:
    """What methods take and give, by their names, as far as the bound goes."""
    described: list[replica_service_pb2.MethodTensors] = []
    left = MAX_DESCRIBED
    for name, tensors in islice(methods, MAX_METHODS):
        left -= len(tensors.inputs) + len(tensors.outputs)
        if left < 0:
            break
        wire = replica_service_pb2.MethodTensors(method=name, yields=tensors.yields, batch_size=tensors.batch_size)
        for each, into in ((tensors.inputs, wire.inputs), (tensors.outputs, wire.outputs)):
            into.extend(
                replica_service_pb2.TensorType(
                    name=one.name, datatype=one.datatype, shape=one.shape, optional=one.optional
                )
                for one in each
            )
        described.append(wire)
    return described


def lanes_stopped_to_wire(ranges: Iterable[Range]) -> replica_service_pb2.LanesStopped:
    """Where lanes have stopped, by run ids."""
    return replica_service_pb2.LanesStopped(runs=ranges_to_wire(ranges))


def reconciled_to_wire(answers: Iterable[tuple[str, int, SessionReport]]) -> Iterator[replica_service_pb2.Reconciled]:
    """What became of calls: session, epoch, report. In frames of few ranges each, but that a session is in one."""
    wire = replica_service_pb2.Reconciled()
    ranges = 0
    for session_id, epoch, report in answers:
        size = len(report.running) + len(report.kept) + len(report.evicted)
        if wire.joined and ranges + size > MAX_FRAME_RANGES:
            yield wire
            wire, ranges = replica_service_pb2.Reconciled(), 0
        ranges += size
        wire.joined.append(_session_calls(session_id, epoch, report.running))
        if report.kept:
            wire.kept.append(_session_calls(session_id, epoch, report.kept))
        if report.evicted:
            wire.evicted.append(_session_calls(session_id, epoch, report.evicted))
        if report.is_incomplete:
            wire.forgotten.append(session_id)
    if wire.joined:
        yield wire


def _session_calls(session_id: str, epoch: int, ranges: Iterable[Range]) -> replica_service_pb2.SessionCalls:
    return replica_service_pb2.SessionCalls(session_id=session_id, epoch=epoch, calls=ranges_to_wire(ranges))
