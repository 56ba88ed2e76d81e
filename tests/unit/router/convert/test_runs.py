"""Calls in, runs out: the columns of frames."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from router_service import convert
from router_service.convert.runs import MAX_WAITED_US
from router_service.core.callers import CREDITS, HALF
from router_service.core.calls import RouterCallOptions
from router_service.core.replicas.frames import KeyColumns, OutgoingBatch
from router_service.core.rosters import FoundCalls
from slotmesh.convert.batches import FramePayloads
from slotmesh.errors import Failure, Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.chunks import Payload, PayloadParts
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.wire_options import wire_options

Batch = router_service_pb2.CallBatch


def add_batch(frame: replica_service_pb2.RunFrame, batch: OutgoingBatch) -> Sequence[tuple[int, Payload]]:
    return convert.add_batch(frame, batch, FramePayloads(2), 100.0)


def outgoing(
    *, partition: int = -1, owner_epoch: int = 0, deadline: float = inf, attempt: int = 0, **fields: Any
) -> replica_service_pb2.RunBatch:
    """A batch as the replica gets it, converted at 100 s."""
    options = convert.options_from_wire(wire_options(**fields))
    assert isinstance(options, RouterCallOptions)
    frame = replica_service_pb2.RunFrame()
    batch = OutgoingBatch(7, "e", options, [b"a", b"b"], partition, owner_epoch, attempt, deadline)
    add_batch(frame, batch)
    (wire,) = frame.batches
    return wire


def test_that_a_replica_has_forgotten_a_session_is_found() -> None:
    calls = [call_pb2.IdRange(first=1, last=2)]
    joined = [replica_service_pb2.SessionCalls(session_id=each, epoch=2) for each in "ab"]
    kept = [replica_service_pb2.SessionCalls(session_id="a", epoch=2, calls=calls)]
    answer = replica_service_pb2.Reconciled(joined=joined, kept=kept, forgotten=["b"])
    assert list(convert.found_of(answer)) == [
        ("a", 2, FoundCalls([], [(1, 2)], ())),
        ("b", 2, FoundCalls([], (), (), forgotten=True)),
    ]


def test_a_batch_says_all_that_a_replica_must_know() -> None:
    wire = outgoing(attempt=2, method="m")
    assert (wire.first_run_id, wire.endpoint, list(wire.payloads), wire.attempt) == (7, "e", [b"a", b"b"], 2)
    assert wire.options.method == "m"
    assert not wire.HasField("time_left")


@pytest.mark.parametrize(("deadline", "nanos"), [(100.25, 250_000_000), (100.0, 0), (99.0, 0), (101.5, 1_500_000_000)])
def test_a_deadline_travels_as_the_time_that_is_left(deadline: float, nanos: int) -> None:
    wire = outgoing(deadline=deadline)
    assert wire.HasField("time_left")
    assert wire.time_left.ToNanoseconds() == nanos


@pytest.mark.parametrize(("level", "credit"), [(0, (0, 0)), (1, HALF), (9, CREDITS[9])])
def test_how_far_handlers_may_be_ahead_is_said_where_it_is_less_than_all(level: int, credit: tuple[int, int]) -> None:
    options = convert.options_from_wire(call_pb2.CallOptions(stream=call_pb2.StreamOptions(each_value=True)))
    assert isinstance(options, RouterCallOptions)
    frame = replica_service_pb2.RunFrame()
    add_batch(frame, OutgoingBatch(7, "e", options, [b"a"], -1, 0, 0, inf, level=level))
    assert (frame.batches[0].values_ahead, frame.batches[0].bytes_ahead) == credit


@pytest.mark.parametrize(
    ("arrived", "waited_us"), [(99.5, 500_000), (100.0, 1), (101.0, 1), (-1e19, MAX_WAITED_US), (inf, 0)]
)
def test_how_long_calls_have_waited_is_said_where_it_is_known(arrived: float, waited_us: int) -> None:
    options = convert.options_from_wire(call_pb2.CallOptions())
    assert isinstance(options, RouterCallOptions)
    frame = replica_service_pb2.RunFrame()
    add_batch(frame, OutgoingBatch(7, "e", options, [b"a"], -1, 0, 0, inf, arrived=arrived))
    assert frame.batches[0].waited_us == waited_us
    assert not frame.batches[0].HasField("origins")


def test_large_payloads_that_fit_into_a_frame_together_are_in_it_and_others_follow() -> None:
    options = convert.options_from_wire(call_pb2.CallOptions())
    assert isinstance(options, RouterCallOptions)
    whole, behind, parts = b"w" * (MAX_FRAME_BYTES - 1), b"b" * (CHUNK_BYTES + 1), PayloadParts([b"p" * 10])
    frame = replica_service_pb2.RunFrame()
    large = add_batch(frame, OutgoingBatch(7, "e", options, [whole, behind, b"s", parts], -1, 0, 0, inf))
    assert list(large) == [(8, behind), (10, parts)]
    assert list(frame.batches[0].payloads) == [whole, b"", b"s", b""]
    assert list(frame.batches[0].chunked_sizes) == [0, len(behind), 0, len(parts)]
    assert not add_batch(frame, OutgoingBatch(7, "e", options, [whole], -1, 0, 0, inf))
    assert not frame.batches[1].chunked_sizes


def test_calls_of_several_keys_have_a_column_of_keys_in_place_of_the_one() -> None:
    options = convert.options_from_wire(call_pb2.CallOptions(ordering_key="k", method="m"))
    assert isinstance(options, RouterCallOptions)
    frame = replica_service_pb2.RunFrame()
    columns = KeyColumns(["k", "j"], [5, 6], [1, 2])
    add_batch(frame, OutgoingBatch(7, "e", options, [b"a", b"b"], -1, 0, 0, inf, columns=columns))
    (wire,) = frame.batches
    assert (wire.options.ordering_key, wire.options.method) == ("", "m")
    assert (list(wire.ordering_keys), list(wire.partitions), list(wire.owner_epochs)) == (["k", "j"], [5, 6], [1, 2])


def test_a_keyed_batch_has_its_key_partition_and_epoch() -> None:
    wire = outgoing(partition=5, owner_epoch=9, ordering_key="k")
    assert (wire.partition, wire.owner_epoch, wire.options.ordering_key) == (5, 9, "k")


def test_a_copy_of_a_keyed_call_has_no_key() -> None:
    wire = outgoing(ordering_key="k", method="m")
    assert (wire.options.ordering_key, wire.options.method) == ("", "m")
    assert (wire.partition, wire.owner_epoch) == (0, 0)


@pytest.mark.parametrize(
    ("batch", "ids"),
    [
        (Batch(first_call_id=5, payloads=[b"", b""]), range(5, 7)),
        (Batch(call_ids=[3, 9], payloads=[b"", b""]), [3, 9]),
        (Batch(first_call_id=1, call_ids=[3], payloads=[b""]), [3]),
    ],
)
def test_ids_are_a_range_or_listed(batch: Batch, ids: Sequence[int]) -> None:
    assert convert.ids_of(batch, 8192) == ids


@pytest.mark.parametrize(
    ("batch", "reason", "field"),
    [
        (Batch(first_call_id=5), Reason.BAD_REQUEST, "payloads"),
        (Batch(call_ids=[1, 2], payloads=[b""]), Reason.BAD_REQUEST, "call_ids"),
        (Batch(call_ids=[1], payloads=[b"", b""]), Reason.BAD_REQUEST, "call_ids"),
    ],
)
def test_a_batch_that_does_not_add_up_is_told_by_its_field(batch: Batch, reason: Reason, field: str) -> None:
    failure = convert.ids_of(batch, 8192)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.metadata["field"]) == (reason, field)


def test_a_replica_that_reports_no_room_at_all_has_one_permit() -> None:
    capacity = convert.capacity_from_wire(
        replica_service_pb2.Capacity(max_ongoing=0, prefetch=2, others=3, draining=True)
    )
    assert (capacity.max_ongoing, capacity.prefetch, capacity.others, capacity.draining) == (1, 2, 3, True)
