"""What a frame may hold is counted before it is parsed."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from slotmesh.internal.v1 import membership_service_pb2, replica_service_pb2
from slotmesh.server.unary_requests import request_shape, shape_of
from slotmesh.streams.frame_bounds import LARGE_BYTES, MAX_COLUMN_BYTES, STEP_FIELDS, TooMuch, too_much
from slotmesh.streams.limits import MAX_ELEMENTS
from slotmesh.v1 import call_pb2, router_service_pb2

Request = router_service_pb2.StreamCallsRequest
CallBatch = router_service_pb2.CallBatch
IdRange = call_pb2.IdRange
MANY_CALLS = 16_384
"""More than the usual window has."""


def told_of(raw: bytes, message: Any) -> TooMuch | None:
    steps = too_much(raw, shape_of(message.DESCRIPTOR))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: TooMuch | None = end.value
            return result


def found(frame: Message, extra: bytes = b"") -> TooMuch | None:
    return told_of(frame.SerializeToString() + extra, frame)


def of_calls(*batches: CallBatch) -> Request:
    return Request(calls=router_service_pb2.CallFrame(batches=batches))


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (of_calls(*[CallBatch()] * (MAX_ELEMENTS + 1)), "calls.batches"),
        (Request(cancel=router_service_pb2.CancelCalls(calls=[IdRange()] * (MAX_ELEMENTS + 1))), "cancel.calls"),
        (Request(open=router_service_pb2.OpenStream(unanswered=[IdRange()] * (MAX_ELEMENTS + 1))), "open.unanswered"),
        (Request(take=call_pb2.TakeItems(call_ids=range(MAX_ELEMENTS + 1))), "take.call_ids"),
        (
            replica_service_pb2.ExecuteRequest(
                runs=replica_service_pb2.RunFrame(batches=[replica_service_pb2.RunBatch()] * (MAX_ELEMENTS + 1))
            ),
            "runs.batches",
        ),
        (
            replica_service_pb2.ExecuteRequest(ack=replica_service_pb2.AckRuns(runs=[IdRange()] * (MAX_ELEMENTS + 1))),
            "ack.runs",
        ),
        (
            membership_service_pb2.AttachRouterRequest(
                report=membership_service_pb2.RouterReport(
                    linked=[membership_service_pb2.PartitionOwner()] * (MAX_ELEMENTS + 1)
                )
            ),
            "report.linked",
        ),
    ],
)
def test_more_elements_than_a_frame_may_have_are_told_by_their_field(frame: Message, field: str) -> None:
    told = found(frame)
    assert told is not None
    assert told.field == field
    assert str(MAX_ELEMENTS) in told.problem


def test_it_is_counted_in_steps() -> None:
    frame = of_calls(*[CallBatch()] * MAX_ELEMENTS)
    steps = list(too_much(frame.SerializeToString(), shape_of(Request.DESCRIPTOR)))
    assert len(steps) == MAX_ELEMENTS // STEP_FIELDS
    assert not list(
        too_much(of_calls(CallBatch(payloads=[b"x" * LARGE_BYTES])).SerializeToString(), shape_of(Request.DESCRIPTOR))
    )


def test_the_counting_ends_at_the_bound() -> None:
    """What is behind it is not even looked at: a group, which no frame has."""
    raw = of_calls(*[CallBatch()] * (MAX_ELEMENTS + 1)).SerializeToString() + b"\x0b"
    told = told_of(raw, Request)
    assert told is not None
    assert told.field == "calls.batches"


def test_elements_that_nobody_knows_count_as_well() -> None:
    told = found(Request(), b"\x78\x01" * (MAX_ELEMENTS + 1))
    assert told is not None
    assert (told.place, told.field) == ("frame", "")


def test_a_frame_of_as_many_elements_as_it_may_have_passes() -> None:
    assert found(of_calls(*[CallBatch()] * MAX_ELEMENTS)) is None
    half = MAX_ELEMENTS // 2 - 1
    assert found(Request(take=call_pb2.TakeItems(call_ids=range(half), counts=[300] * half))) is None


@pytest.mark.parametrize("size", [10, 100, 1_000])
@pytest.mark.parametrize("in_a_column", [False, True])
def test_all_calls_of_a_large_window_are_one_frame(size: int, in_a_column: bool) -> None:
    keys = [f"key-{number}" for number in range(MANY_CALLS)]
    payload, options = b"x" * size, call_pb2.CallOptions(method="m", metadata={"a": "b" * 100})
    if in_a_column:
        batch = CallBatch(call_ids=range(1, 2 * len(keys), 2), payloads=[payload] * len(keys), ordering_keys=keys)
        frame = of_calls(batch)
    else:
        frame = of_calls(*[CallBatch(first_call_id=at, options=options, payloads=[payload]) for at in range(len(keys))])
    assert found(frame) is None


def test_batches_of_a_large_frame_are_looked_into() -> None:
    many = [b"x" * 40] * MAX_ELEMENTS
    told = found(of_calls(CallBatch(payloads=many)))
    assert told is not None
    assert (told.place, told.field) == ("calls.batches[].payloads", "calls.batches")
    assert found(of_calls(CallBatch(payloads=[b"x" * LARGE_BYTES] * 4, call_ids=[1, 2, 3, 4]))) is None


def test_columns_of_a_large_frame_have_a_size() -> None:
    told = found(of_calls(CallBatch(call_ids=[2**50] * (MAX_COLUMN_BYTES // 4))))
    assert told is not None
    assert (told.place, told.field) == ("calls.batches[].call_ids", "calls.batches")


@pytest.mark.parametrize(
    "tail", [b"\x12", b"\x12\xff", b"\x78" + b"\xff" * 80_000, b"\x12\x80\x80\x80\x80\x80\x80\x80"]
)
def test_what_is_no_message_is_left_to_the_parser(tail: bytes) -> None:
    raw = of_calls(CallBatch(payloads=[b"x" * 2 * MAX_ELEMENTS])).SerializeToString() + tail
    assert told_of(raw, Request) is None


def test_no_frame_has_groups() -> None:
    told = found(of_calls(CallBatch(payloads=[b"x" * 2 * MAX_ELEMENTS])), b"\x7b" + b"\x78\x01" * 10 + b"\x7c")
    assert told is not None
    assert "group" in told.problem


def in_request(message: Any) -> TooMuch | None:
    steps = too_much(message.SerializeToString(), request_shape(message.DESCRIPTOR))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: TooMuch | None = end.value
            return result


@pytest.mark.parametrize(("size", "passes"), [(65_535, True), (65_536, True), (65_537, False)])
def test_options_of_exactly_as_many_bytes_as_they_may_have_pass(size: int, passes: bool) -> None:
    """64 KiB, with the head of the one field that fills them."""
    options = call_pb2.CallOptions(ordering_key="k" * (size - 4))
    assert options.ByteSize() == size
    told = in_request(router_service_pb2.CallRequest(endpoint="e", options=options, payload=b"x"))
    assert (told is None) is passes
    assert passes or (told is not None and told.field == "options")
