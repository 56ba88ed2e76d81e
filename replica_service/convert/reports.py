"""Converts the replica's reports, to routers and to the controller, to messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from replica_service.core.call_times import ReportedTime
from replica_service.core.permits import PermitCapacity
from replica_service.core.session_table import SessionReport
from slotmesh.calls.handler_figures import MAX_SHOWN_MODEL_CHARS, MAX_SHOWN_MODELS, NOTHING_EVICTED, Evicted
from slotmesh.calls.id_ranges import Range
from slotmesh.calls.method_outlines import MAX_DESCRIBED, MethodOutline, MethodTensors
from slotmesh.convert.batches import ranges_to_wire
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.names import sendable_text
from slotmesh.streams.limits import MAX_FRAME_RANGES, MAX_METHODS
from slotmesh.v1 import mesh_pb2

MAX_END_REASON_CHARS = 300
MAX_REPORTED_CHARS = 16_384
"""Bound of an error or a warning. A longer text keeps its end, where a traceback has the exception."""


def clipped(text: str) -> str:
    """Returns the end of an error or a warning, which is short enough for a report."""
    return sendable_text(text[-MAX_REPORTED_CHARS:], MAX_REPORTED_CHARS)


def capacity_to_wire(capacity: PermitCapacity) -> replica_service_pb2.Capacity:
    """A report for one router."""
    return replica_service_pb2.Capacity(
        max_ongoing=capacity.max_ongoing,
        prefetch=capacity.prefetch,
        keyed_window=capacity.keyed_window,
        draining=capacity.draining,
        others=capacity.others,
    )


def loaded_models_to_wire(ids: Sequence[str], most: int) -> mesh_pb2.LoadedModels:
    """Loaded models for operators, those of the latest uses first."""
    shown = (sendable_text(each, MAX_SHOWN_MODEL_CHARS) for each in ids[:MAX_SHOWN_MODELS])
    return mesh_pb2.LoadedModels(count=len(ids), most=most, ids=shown)


def service_times_to_wire(times: Iterable[ReportedTime]) -> replica_service_pb2.ServiceTimes:
    """How quickly calls are got through."""
    wire = replica_service_pb2.ServiceTimes()
    for each in times:
        method = wire.methods.add(method=each.method, batch_size=each.batch_size)
        method.service_time.FromNanoseconds(round(each.service_s * 1e9))
    return wire


def handler_state_to_wire(
    figures: Mapping[str, float],
    models: Iterable[str] | None,
    max_models: int,
    load_s: float,
    evicted: Evicted = NOTHING_EVICTED,
) -> replica_service_pb2.HandlerState:
    """What the handler reports of itself. `models` None: they have not changed."""
    wire = replica_service_pb2.HandlerState(
        figures=figures,
        models=models or (),
        same_models=models is None,
        max_models=max_models,
        evicted_blocks=evicted.blocks,
        all_evicted=evicted.is_all,
    )
    if load_s:
        wire.load_time.FromNanoseconds(round(load_s * 1e9))
    return wire


def outlines_to_wire(outlines: Iterable[MethodOutline]) -> list[replica_service_pb2.MethodOutline]:
    """What methods take and give."""
    wire = replica_service_pb2.MethodOutline
    return [
        wire(
            method=it.method,
            yields=it.yields,
            schema=it.schema,
            prefix_argument=it.prefix_argument,
            prefix_position=it.prefix_position,
        )
        for it in outlines
    ]


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
