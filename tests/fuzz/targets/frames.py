"""Frames as they are read: counted before they are parsed, and converted, in the direction that no rpc target reaches.

What clients send is in the targets of rpcs, which call the servicers; here is what servers answer, and large frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from google.protobuf.message import DecodeError

from router_service import convert
from router_service.core.routing_table import DeltaMismatch, RoutingTable, follow_delta
from slotmesh.calls import id_ranges
from slotmesh.convert.batches import ranges_from_wire
from slotmesh.convert.specification import backend_from_wire
from slotmesh.internal.v1 import membership_service_pb2, replica_service_pb2
from slotmesh.server.unary_requests import shape_of
from slotmesh.status import from_wire
from slotmesh.streams.arriving_payloads import BadChunk, JoinedAssembly
from slotmesh.streams.frame_bounds import SMALL_BYTES, too_much
from slotmesh.v1 import call_pb2, direct_service_pb2, router_service_pb2
from tests.fuzz.messages import Words, message_from
from tests.fuzz.source import Source
from tests.support.tables import delta_from_wire, table_from_wire

WORDS: Final[Words] = {"": ("e", "b", "r-1", "r-2", "i-1", "g")}
STREAMED: Final[tuple[Any, ...]] = (
    router_service_pb2.StreamCallsRequest,
    replica_service_pb2.ExecuteRequest,
    membership_service_pb2.AttachReplicaRequest,
    membership_service_pb2.AttachRouterRequest,
    direct_service_pb2.AttachRequest,
)


@contextmanager
def bounds() -> Iterator[Callable[[bytes], object]]:
    """Bytes, again and again, until there are so many that they are counted."""
    shapes = [shape_of(kind.DESCRIPTOR) for kind in STREAMED]

    def run(data: bytes) -> None:
        source = Source(data)
        shape, head, body = source.choice(shapes), source.take(source.below(8)), source.rest() or b"\0"
        steps = sum(1 for _ in too_much(head + body * (SMALL_BYTES // len(body) + 1), shape))
        if steps > 100:
            raise AssertionError(f"counted in {steps} steps")

    yield run


@contextmanager
def replica_answers() -> Iterator[Callable[[bytes], object]]:
    """What a router reads of a replica."""
    descriptor = replica_service_pb2.ExecuteResponse.DESCRIPTOR

    def run(data: bytes) -> None:
        frame: Any = message_from(descriptor, Source(data), WORDS)
        if not convert.results_problem(frame.results.batches):
            convert.results_of(frame.results, lambda batch: batch.payloads[:])
            convert.values_of(frame.results, lambda batch: batch.payloads[:])
        for errors in frame.results.errors:
            from_wire(errors.failure)
        id_ranges.merged(ranges_from_wire(frame.refused.runs))
        from_wire(frame.refused.failure)
        convert.capacity_from_wire(frame.capacity)
        convert.times_of(frame.service_times)
        list(convert.slot_answers_of(frame.slots))
        list(convert.found_of(frame.reconciled))

    yield run


@contextmanager
def tables() -> Iterator[Callable[[bytes], object]]:
    """Routing tables and deltas, as a router takes them."""
    kinds = membership_service_pb2.AttachRouterResponse.DESCRIPTOR

    def run(data: bytes) -> None:
        source, table = Source(data), RoutingTable()
        for _ in range(1 + source.below(3)):
            frame: Any = message_from(kinds, source, WORDS)
            with suppress(ValueError, DeltaMismatch):
                part = frame.table_part
                if part.HasField("delta"):
                    table = follow_delta(table, delta_from_wire(part.delta, table))
                else:
                    table = table_from_wire(part.table, table)
        list(convert.table_to_parts(table))

    yield run


@contextmanager
def configurations() -> Iterator[Callable[[bytes], object]]:
    """What a replica is told by its controller, field by field, and as bytes."""
    kind: Any = membership_service_pb2.AttachReplicaResponse

    def run(data: bytes) -> None:
        source = Source(data)
        if source.below(2):
            frame = message_from(kind.DESCRIPTOR, source, WORDS)
        else:
            try:
                frame = kind.FromString(source.rest())
            except DecodeError:
                return
        backend_from_wire(frame.configuration.backend)  # type: ignore[attr-defined]

    yield run


@contextmanager
def chunks() -> Iterator[Callable[[bytes], object]]:
    def run(data: bytes) -> None:
        source = Source(data)
        assembly = JoinedAssembly(total := source.integer(), least=source.choice((0, 1, 16_384)))
        for _ in range(source.below(8)):
            with suppress(BadChunk):
                assembly.add(source.integer(), source.choice((total, source.integer())), source.payload())
        if len(assembly.payload()) != assembly.received:
            raise AssertionError("bytes were lost")

    yield run


@contextmanager
def failures() -> Iterator[Callable[[bytes], object]]:
    def run(data: bytes) -> None:
        wire: Any = message_from(call_pb2.Failure.DESCRIPTOR, Source(data), {})
        from_wire(wire)

    yield run


TARGETS: Final = {
    "frames-bounds": bounds,
    "frames-replica-answers": replica_answers,
    "frames-tables": tables,
    "frames-configurations": configurations,
    "frames-chunks": chunks,
    "frames-failures": failures,
}
