"""What leaves in which frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from replica_service.convert.slots import Issuer, SlotReleased
from replica_service.core.permits import PermitCapacity
from replica_service.shell.router_outbox import Outbox, Response
from slotmesh.codec import JSON, OCTET_STREAM
from slotmesh.convert.batches import ids_from_wire, ids_of_results
from slotmesh.errors import Failure, Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.limits import CHUNK_BYTES, LARGE_CHUNK_BYTES, MAX_FRAME_BYTES, MAX_FRAME_CALLS
from slotmesh.v1 import call_pb2
from tests.support.fakes.clock import FakeClock

FULL = Failure(reason=Reason.QUEUE_FULL, message="full")
LATE = Failure(reason=Reason.DEADLINE_IN_QUEUE, message="late")


class Desk:
    """An outbox whose capacity can be set, and that counts how often it would be woken."""

    def __init__(self) -> None:
        self.others = 1
        self.woken = 0
        self.outbox = Outbox(lambda: PermitCapacity(8, 2, 100, False, self.others), Issuer(FakeClock()))
        self.outbox.connect(self.wake)
        self.first = self.outbox.next_frame()

    def wake(self) -> None:
        self.woken += 1

    def frames(self) -> Iterator[Response]:
        while (frame := self.outbox.next_frame()) is not None:
            yield frame

    def frame(self) -> call_pb2.ResultFrame:
        (frame,) = self.frames()
        assert frame.WhichOneof("frame") == "results"
        return frame.results


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_first_frame_is_the_capacity(desk: Desk) -> None:
    assert desk.first is not None
    assert desk.first.capacity == replica_service_pb2.Capacity(max_ongoing=8, prefetch=2, keyed_window=100, others=1)
    assert desk.outbox.next_frame() is None


def test_answers_about_slots_leave_together_but_not_before_the_first_capacity() -> None:
    outbox = Outbox(lambda: PermitCapacity(8, 2, 100, False, 1), Issuer(FakeClock()))
    for op_id in (1, 2):
        outbox.slot_answer(op_id, SlotReleased(1, 8))
    first, second = outbox.next_frame(), outbox.next_frame()
    assert first is not None
    assert second is not None
    assert [frame.WhichOneof("frame") for frame in (first, second)] == ["opened", "slots"]
    assert [(each.op_id, each.released.max_ongoing) for each in second.slots.results] == [(1, 8), (2, 8)]
    assert second.capacity == first.capacity
    assert outbox.next_frame() is None
    outbox.slot_answer(3, LATE)
    outbox.discard()
    assert outbox.next_frame() is None


def test_results_of_many_runs_leave_together_with_the_newest_capacity(desk: Desk) -> None:
    desk.outbox.results(1, [b"a", b"b"], 2, OCTET_STREAM)
    desk.outbox.results(3, [b"c"], 1, OCTET_STREAM)
    desk.outbox.results(9, [b"{}"], 2, JSON)
    desk.others = 5
    (response,) = desk.frames()
    frame = response.results
    assert desk.woken == 3
    assert frame.frame_no == 1
    assert [(list(ids_of_results(batch)), list(batch.payloads), batch.content_type) for batch in frame.batches] == [
        ([1, 2, 3], [b"a", b"b", b"c"], OCTET_STREAM),
        ([9], [b"{}"], JSON),
    ]
    assert response.capacity.others == 5
    desk.outbox.results(10, [b""], 0, OCTET_STREAM)
    assert desk.frame().frame_no == 2


def test_equal_failures_are_told_once(desk: Desk) -> None:
    for first in (1, 2, 3):
        desk.outbox.failed(first, 1, FULL)
    desk.outbox.failed(4, 2, LATE)
    errors = desk.frame().errors
    assert [(list(ids_from_wire(error.calls)), error.failure.reason) for error in errors] == [
        ([1, 2, 3], "QUEUE_FULL"),
        ([4, 5], "DEADLINE_IN_QUEUE"),
    ]


def test_refusals_carry_ranges_and_capacity(desk: Desk) -> None:
    desk.outbox.refused(1, 3, FULL)
    desk.outbox.refused(9, 1, FULL)
    desk.outbox.refused(20, 1, LATE)
    first, second = desk.frames()
    assert [(each.first, each.last) for each in first.refused.runs] == [(1, 3), (9, 9)]
    assert first.refused.failure.reason == "QUEUE_FULL"
    assert first.capacity.max_ongoing == 8
    assert [(each.first, each.last) for each in second.refused.runs] == [(20, 20)]


def test_large_results_are_spread_over_frames(desk: Desk) -> None:
    payload = bytes(CHUNK_BYTES - 1)
    desk.outbox.results(1, [payload] * 10, 10 * len(payload), OCTET_STREAM)
    frames = [frame.results for frame in desk.frames()]
    ids = [run_id for frame in frames for batch in frame.batches for run_id in ids_of_results(batch)]
    assert ids == list(range(1, 11))
    assert [frame.frame_no for frame in frames] == list(range(1, len(frames) + 1))
    for frame in frames:
        assert sum(len(payload) for batch in frame.batches for payload in batch.payloads) <= MAX_FRAME_BYTES


def test_a_frame_has_a_bounded_number_of_calls(desk: Desk) -> None:
    count = MAX_FRAME_CALLS + 5
    desk.outbox.results(1, [b""] * count, 0, OCTET_STREAM)
    desk.outbox.failed(count + 1, count, FULL)
    answered = []
    for frame in desk.frames():
        ids = [run_id for batch in frame.results.batches for run_id in ids_of_results(batch)]
        ids += [run_id for errors in frame.results.errors for run_id in ids_from_wire(errors.calls)]
        assert 0 < len(ids) <= MAX_FRAME_CALLS
        answered += ids
    assert sorted(answered) == list(range(1, 2 * count + 1))


def test_capacity_alone_where_there_are_no_results(desk: Desk) -> None:
    desk.outbox.tell_capacity()
    (frame,) = desk.frames()
    assert frame.WhichOneof("frame") is None
    assert frame.HasField("capacity")
    desk.outbox.tell_capacity()
    desk.outbox.results(1, [b""], 0, OCTET_STREAM)
    desk.outbox.next_frame()
    desk.outbox.tell_capacity()
    desk.outbox.results(2, [b""], 0, OCTET_STREAM)
    assert [frame.WhichOneof("frame") for frame in desk.frames()] == ["results"]


def test_who_goes_away_says_so_after_the_capacity(desk: Desk) -> None:
    desk.outbox.go_away("bye")
    desk.outbox.refused(1, 1, FULL)
    assert [frame.WhichOneof("frame") for frame in desk.frames()] == [None, "go_away", "refused"]


def test_nothing_is_kept_for_a_router_that_is_gone(desk: Desk) -> None:
    desk.outbox.results(1, [b""], 0, OCTET_STREAM)
    desk.outbox.discard()
    desk.outbox.results(2, [b""], 0, OCTET_STREAM)
    desk.outbox.failed(3, 1, FULL)
    desk.outbox.refused(4, 1, FULL)
    assert desk.outbox.next_frame() is None


def kinds(frames: Iterable[Response]) -> list[str]:
    return [
        f"chunk {frame.chunk.call_id}" if frame.WhichOneof("frame") == "chunk" else str(frame.WhichOneof("frame"))
        for frame in frames
    ]


def test_a_large_result_leaves_before_the_frame_that_speaks_of_it() -> None:
    desk = Desk()
    payload = bytes(range(256)) * (LARGE_CHUNK_BYTES // 256) * 4 + b"end"
    desk.outbox.results(7, [payload], len(payload), JSON)
    *chunks, frame = desk.frames()
    assert kinds(chunks) == ["chunk 7"] * 5
    assert [each.chunk.offset for each in chunks] == [at * LARGE_CHUNK_BYTES for at in range(5)]
    assert {each.chunk.total for each in chunks} == {len(payload)}
    assert b"".join(each.chunk.data for each in chunks) == payload
    (batch,) = frame.results.batches
    assert batch == call_pb2.ResultBatch(call_ids=[7], payloads=[b""], content_type=JSON, chunked_sizes=[len(payload)])


def test_others_wait_for_one_chunk_at_most_and_large_results_take_turns() -> None:
    desk = Desk()
    desk.outbox.results(20, [b"before"], 6, OCTET_STREAM)
    payload = bytes(2 * CHUNK_BYTES)
    desk.outbox.results(1, [payload, payload], 2 * len(payload), OCTET_STREAM)
    seen: list[Response] = []
    for run_id in range(10, 16):
        desk.outbox.results(run_id, [b"small"], 5, OCTET_STREAM)
        seen += [frame for _ in range(2) if (frame := desk.outbox.next_frame()) is not None]
    seen += desk.frames()
    assert kinds(seen) == [
        "results",
        "chunk 1",
        "results",
        "chunk 2",
        "results",
        "chunk 1",
        "results",
        "chunk 2",
        *["results"] * 2,
    ]
    told = [call_id for frame in seen for batch in frame.results.batches for call_id in ids_of_results(batch)]
    assert sorted(told) == [1, 2, *range(10, 16), 20]


def test_a_large_result_that_nothing_waits_before_leaves_whole_if_it_fits_into_a_frame() -> None:
    desk = Desk()
    largest = bytes(MAX_FRAME_BYTES)
    desk.outbox.results(1, [largest], len(largest), OCTET_STREAM)
    (frame,) = desk.frames()
    (batch,) = frame.results.batches
    assert (list(ids_of_results(batch)), list(batch.payloads), list(batch.chunked_sizes)) == ([1], [largest], [])
    desk.outbox.results(2, [largest + b"1"], len(largest) + 1, OCTET_STREAM)
    assert kinds(desk.frames()) == ["chunk 2"] * 2 + ["results"]


def test_only_the_first_of_several_large_results_leaves_whole() -> None:
    desk = Desk()
    payload = bytes(2 * CHUNK_BYTES)
    desk.outbox.results(1, [payload, payload], 2 * len(payload), OCTET_STREAM)
    assert kinds(desk.frames()) == ["results", "chunk 2", "results"]


def test_a_result_has_its_payload_in_a_frame_that_also_ends_a_result_in_chunks() -> None:
    desk = Desk()
    large, other = bytes(MAX_FRAME_BYTES + 1), b"x" * CHUNK_BYTES
    desk.outbox.results(1, [large], len(large), OCTET_STREAM)
    assert kinds(filter(None, (desk.outbox.next_frame() for _ in range(2)))) == ["chunk 1"] * 2
    desk.outbox.results(2, [other], len(other), OCTET_STREAM)
    (frame,) = desk.frames()
    found = {
        tuple(ids_of_results(each)): (list(each.payloads), list(each.chunked_sizes)) for each in frame.results.batches
    }
    assert found == {(2,): ([other], []), (1,): ([b""], [len(large)])}


def test_small_results_beside_a_large_one_do_not_wait_for_it() -> None:
    desk = Desk()
    payloads = [b"a", bytes(CHUNK_BYTES + 1), b"c"]
    desk.outbox.results(1, payloads, sum(map(len, payloads)), OCTET_STREAM)
    first, second, third, last = desk.frames()
    assert kinds([first, second, third, last]) == ["results", "chunk 2", "chunk 2", "results"]
    assert list(ids_of_results(first.results.batches[0])) == [1, 3]
    assert list(ids_of_results(last.results.batches[0])) == [2]


def test_what_nobody_reads_is_not_cut() -> None:
    desk = Desk()
    payload = bytes(CHUNK_BYTES + 1)
    desk.outbox.results(1, [payload], len(payload), OCTET_STREAM)
    assert desk.outbox.next_frame() is not None
    desk.outbox.discard()
    assert desk.outbox.next_frame() is None
