"""Frames with large payloads are the messages that they stand for, whether they are written or read."""

from __future__ import annotations

from typing import Final

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.streams.arriving_payloads import JoinedAssembly
from slotmesh.streams.spliced_frames import (
    MAX_SPLICED,
    MIN_SPLICED_BYTES,
    CutFrame,
    SplicedFrame,
    are_large,
    cut,
    whole,
)
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.examples import examples

Request = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse

CALLS: Final = (
    Request.CALLS_FIELD_NUMBER,
    router_service_pb2.CallFrame.BATCHES_FIELD_NUMBER,
    router_service_pb2.CallBatch.PAYLOADS_FIELD_NUMBER,
)
CHUNK: Final = (Request.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER)
RESULTS: Final = (
    Response.RESULTS_FIELD_NUMBER,
    call_pb2.ResultFrame.BATCHES_FIELD_NUMBER,
    call_pb2.ResultBatch.PAYLOADS_FIELD_NUMBER,
)
CHUNK_BACK: Final = (Response.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER)

sizes = st.lists(st.sampled_from([0, 1, 126, 127, 128, 16_383, 16_384, MIN_SPLICED_BYTES]), min_size=1, max_size=4)


def payloads_of(each: list[int]) -> list[bytes]:
    return [bytes([at + 1]) * size for at, size in enumerate(each)]


def result_frame(payloads: list[bytes]) -> Response:
    batch = call_pb2.ResultBatch(first_call_id=7, content_type="application/json", payloads=payloads)
    return Response(results=call_pb2.ResultFrame(frame_no=3, batches=[batch], done=[call_pb2.IdRange(first=9, last=9)]))


@settings(max_examples=examples(40))
@given(sizes, st.text(max_size=200), st.booleans())
def test_a_spliced_frame_is_written_as_its_message(each: list[int], method: str, resent: bool) -> None:
    payloads = payloads_of(each)
    frame = Request()
    frame.calls.resent_all = resent
    frame.calls.batches.add(first_call_id=1, options=call_pb2.CallOptions(method="earlier"), payloads=[b"other"])
    frame.calls.batches.add(first_call_id=2, options=call_pb2.CallOptions(method=method), call_ids=[2, 300, 70_000])
    spliced = SplicedFrame(frame, CALLS, payloads)
    expected = Request()
    expected.CopyFrom(frame)
    expected.calls.batches[1].payloads.extend(payloads)
    assert Request.FromString(spliced.SerializeToString()) == expected
    assert whole(spliced) == expected
    assert spliced.calls == expected.calls, "it can be read, too"


@pytest.mark.parametrize("size", [1, 127, 128, MIN_SPLICED_BYTES])
def test_a_chunk_may_be_a_view(size: int) -> None:
    data = b"x" * size
    frame = SplicedFrame(Request(chunk=call_pb2.Chunk(call_id=5, total=size)), CHUNK, [memoryview(data)])
    assert Request.FromString(frame.SerializeToString()).chunk == call_pb2.Chunk(call_id=5, total=size, data=data)


@settings(max_examples=examples(40))
@given(sizes)
def test_a_frame_that_is_cut_has_all_but_its_payloads(each: list[int]) -> None:
    payloads = payloads_of([*each, MIN_SPLICED_BYTES])
    frame = result_frame(payloads)
    found = cut(frame.SerializeToString(), Response.FromString, (CHUNK_BACK, RESULTS))
    assert isinstance(found, CutFrame)
    assert found.payloads == payloads
    assert found.message == result_frame([b""] * len(payloads))


def test_a_large_chunk_is_cut() -> None:
    data = b"x" * MIN_SPLICED_BYTES
    frame = Response(chunk=call_pb2.Chunk(call_id=5, offset=3, total=9, data=data))
    message, payloads = cut(frame.SerializeToString(), Response.FromString, (RESULTS, CHUNK_BACK))
    assert payloads == [data]
    assert message == Response(chunk=call_pb2.Chunk(call_id=5, offset=3, total=9, data=b""))


def two_batches() -> Response:
    frame = result_frame([b"x" * MIN_SPLICED_BYTES])
    frame.results.batches.append(frame.results.batches[0])
    return frame


@pytest.mark.parametrize(
    "frame",
    [
        result_frame([b"x" * (MIN_SPLICED_BYTES - 100)]),
        result_frame([b"x" * MIN_SPLICED_BYTES] * (MAX_SPLICED + 1)),
        two_batches(),
        Response(results=call_pb2.ResultFrame(batches=[call_pb2.ResultBatch(block=b"x" * MIN_SPLICED_BYTES)])),
        Response(go_away=call_pb2.GoAway(message="x" * MIN_SPLICED_BYTES)),
    ],
    ids=["small", "many payloads", "two batches", "a block", "another frame"],
)
def test_other_frames_are_parsed_as_ever(frame: Response) -> None:
    assert cut(frame.SerializeToString(), Response.FromString, (RESULTS, CHUNK_BACK)) == frame


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 1), (1, 0, 0)])
def test_a_message_with_several_frames_is_parsed_whole(order: tuple[int, ...]) -> None:
    results = result_frame([b"r" * MIN_SPLICED_BYTES]).SerializeToString()
    chunk = Response(chunk=call_pb2.Chunk(call_id=5, total=9, data=b"c" * MIN_SPLICED_BYTES)).SerializeToString()
    raw = b"".join((results, chunk)[each] for each in order)
    assert cut(raw, Response.FromString, (RESULTS, CHUNK_BACK)) == Response.FromString(raw)


@pytest.mark.parametrize("lost", [1, 5, MIN_SPLICED_BYTES - 1])
def test_what_is_cut_off_is_the_parsers_to_refuse(lost: int) -> None:
    raw = result_frame([b"x" * (2 * MIN_SPLICED_BYTES)]).SerializeToString()[:-lost]
    with pytest.raises(DecodeError):
        cut(raw, Response.FromString, (RESULTS, CHUNK_BACK))


def test_a_group_that_looks_like_a_field_is_skipped_by_the_parser() -> None:
    inside = result_frame([b"x" * MIN_SPLICED_BYTES]).SerializeToString()
    raw = b"\xfb\x3f" + inside + b"\xfc\x3f"  # in an unknown group
    assert cut(raw, Response.FromString, (RESULTS, CHUNK_BACK)) == Response.FromString(raw)


@settings(max_examples=examples(100))
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_what_they_are_to_the_parser(head: bytes) -> None:
    raw = head + b"\0" * MIN_SPLICED_BYTES
    try:
        expected = Response.FromString(raw)
    except DecodeError:
        with pytest.raises(DecodeError):
            cut(raw, Response.FromString, (RESULTS, CHUNK_BACK))
    else:
        assert whole_again(cut(raw, Response.FromString, (RESULTS, CHUNK_BACK))) == expected


def whole_again(found: Response | CutFrame) -> Response:
    if not isinstance(found, CutFrame):
        return found
    message: Response = found.message
    if message.HasField("chunk"):
        message.chunk.data = found.payloads[-1]
    else:
        message.results.batches[0].payloads[:] = found.payloads
    return message


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        ([MIN_SPLICED_BYTES - 1], False),
        ([MIN_SPLICED_BYTES], True),
        ([MIN_SPLICED_BYTES] * MAX_SPLICED, True),
        ([MIN_SPLICED_BYTES] * (MAX_SPLICED + 1), False),
    ],
)
def test_exact_bounds(each: list[int], expected: bool) -> None:
    assert are_large(payloads_of(each)) is expected


def test_a_payload_in_one_chunk_is_not_copied() -> None:
    data = b"x" * MIN_SPLICED_BYTES
    assembly = JoinedAssembly(len(data))
    assert assembly.add(0, len(data), data)
    assert assembly.payload() is data
