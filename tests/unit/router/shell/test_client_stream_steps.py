"""Frames of many calls are dealt with in steps, so that others have their turn on the event loop between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from router_service.core.callers import Window
from router_service.core.calls import NO_OPTIONS, KeyedBatch
from router_service.core.events import CallsCancelled, CallsSubmitted, RouterEvent
from router_service.core.limits.unread_results import Unread
from router_service.core.runs import RouterRun
from router_service.core.scheduler import RouterScheduler
from router_service.shell.clients.call_reader import MAX_STEP
from router_service.shell.clients.connected_streams import fenced_by
from router_service.shell.clients.stream import MAX_UNREAD_REJECTED_IDS, MAX_UNREAD_REJECTIONS, ClientStream
from router_service.shell.dispatcher import Dispatcher
from slotmesh.errors import Failure, Reason
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.clock import FakeClock

CallBatch = router_service_pb2.CallBatch
MANY = 4 * MAX_STEP


class Recorded(Dispatcher):
    """A dispatcher that notes how much is decided at a time."""

    def __init__(self) -> None:
        def no_link(*_: object) -> None:
            raise AssertionError("there are no replicas")

        super().__init__(RouterScheduler(lambda: 0.5), FakeClock(), no_link)  # type: ignore[arg-type]
        self.submitted: list[list[Sequence[int]]] = []
        """The ids of the calls of each run, step by step."""
        self.cancelled: list[list[tuple[int, int]]] = []

    def post(self, event: RouterEvent) -> None:
        match event:
            case CallsSubmitted(batches=batches):
                runs: list[Sequence[int]] = []
                for batch in batches:
                    if isinstance(batch, KeyedBatch):
                        runs += [(each,) for each in batch.ids]
                    else:
                        runs.append(batch[1])
                self.submitted.append(runs)
            case CallsCancelled(ranges=ranges):
                self.cancelled.append(list(ranges))
            case _:
                raise AssertionError(f"nobody expects {event}")


@pytest.fixture
def dispatcher() -> Recorded:
    return Recorded()


@pytest.fixture
def stream(dispatcher: Recorded) -> ClientStream:
    async def write(_: object) -> None: ...

    return ClientStream("e", call_pb2.CallOptions(), Window(8192, 2**20), dispatcher, Unread(lambda: 0.0), write)


def frame(*batches: CallBatch) -> router_service_pb2.CallFrame:
    return router_service_pb2.CallFrame(batches=batches)


@pytest.mark.asyncio
@pytest.mark.parametrize("in_a_column", [False, True])
async def test_calls_are_submitted_in_steps_and_in_order(
    stream: ClientStream, dispatcher: Recorded, in_a_column: bool
) -> None:
    ids = range(1, MANY + 1)
    if in_a_column:
        batches = [CallBatch(first_call_id=1, payloads=[b""] * MANY, ordering_keys=[str(each) for each in ids])]
    else:
        batches = [CallBatch(first_call_id=each, payloads=[b""]) for each in ids]
    steps = 0
    for failure in stream.accept(frame(*batches)):
        assert failure is None
        steps += 1
        assert sum(map(len, dispatcher.submitted)) <= steps * MAX_STEP
    assert steps >= MANY // MAX_STEP
    assert all(len(calls) <= MAX_STEP for calls in dispatcher.submitted)
    assert [each for runs in dispatcher.submitted for ids in runs for each in ids] == list(range(1, MANY + 1))


@pytest.mark.asyncio
async def test_keys_that_are_refused_count_as_well(stream: ClientStream) -> None:
    keys = [str(each) + "x" * 1024 for each in range(MANY)]
    batch = CallBatch(first_call_id=1, payloads=[b""] * MANY, ordering_keys=keys)
    assert len(list(stream.accept(frame(batch)))) >= MANY // MAX_STEP


@pytest.mark.asyncio
async def test_few_calls_take_one_step(stream: ClientStream, dispatcher: Recorded) -> None:
    assert not list(stream.accept(frame(CallBatch(first_call_id=1, payloads=[b""] * MANY))))
    assert len(dispatcher.submitted) == 1


@pytest.mark.asyncio
async def test_nothing_more_is_taken_once_a_newer_connection_has_the_session(
    stream: ClientStream, dispatcher: Recorded
) -> None:
    for _ in stream.accept(frame(*[CallBatch(first_call_id=each, payloads=[b""]) for each in range(1, MANY)])):
        stream.fenced.end(fenced_by(1, 2))
    assert len(dispatcher.submitted) == 1


@pytest.mark.asyncio
async def test_rejections_end_the_stream_in_the_middle_of_a_frame(stream: ClientStream) -> None:
    *steps, failure = stream.accept(frame(*[CallBatch()] * (2 * MAX_UNREAD_REJECTIONS)))
    assert isinstance(failure, Failure)
    assert failure.reason is Reason.WINDOW_EXCEEDED
    assert len(steps) <= MAX_UNREAD_REJECTIONS // MAX_STEP


@pytest.mark.asyncio
async def test_ids_of_rejected_batches_are_bounded_too(stream: ClientStream) -> None:
    batch = CallBatch(call_ids=range(1, 8193))
    told = [failure for failure in stream.accept(frame(*[batch] * (MAX_UNREAD_REJECTED_IDS // 8192 + 1))) if failure]
    assert [failure.reason for failure in told] == [Reason.WINDOW_EXCEEDED]
    while (response := stream.next_frame()) is not None:
        assert list(response.rejected.call_ids) == list(batch.call_ids)
    assert not list(stream.accept(frame(batch))), "what was read counts no more"


@pytest.mark.asyncio
async def test_ids_that_no_window_could_hold_are_not_sent_back(stream: ClientStream) -> None:
    list(stream.accept(frame(CallBatch(call_ids=range(1, 50_000)))))
    response = stream.next_frame()
    assert response is not None
    assert not response.rejected.call_ids


@pytest.mark.asyncio
async def test_cancels_are_dealt_with_in_steps(stream: ClientStream, dispatcher: Recorded) -> None:
    ranges = [call_pb2.IdRange(first=each, last=each) for each in range(1, MANY + 1)]
    steps = list(stream.cancel(router_service_pb2.CancelCalls(calls=ranges)))
    assert [len(each) for each in dispatcher.cancelled] == [MAX_STEP] * 4
    assert len(steps) == 4


@pytest.mark.asyncio
async def test_one_range_of_many_calls_is_dealt_with_in_steps_too(stream: ClientStream, dispatcher: Recorded) -> None:
    for call_id in range(1, 2 * MAX_STEP + 2):
        stream.caller.runs[RouterRun(call_id, stream.caller, "e", NO_OPTIONS, [call_id], [b""], 0.0)] = None
    cancel = router_service_pb2.CancelCalls(calls=[call_pb2.IdRange(first=3, last=2**53 - 1)])
    assert len(list(stream.cancel(cancel))) == 3
    first, second, third = (spans for (spans,) in dispatcher.cancelled)
    assert first == (3, MAX_STEP)
    assert second == (MAX_STEP + 1, 2 * MAX_STEP)
    assert third == (2 * MAX_STEP + 1, 2**53 - 1)


@pytest.mark.asyncio
async def test_not_all_is_answered_in_the_middle_of_a_frame(stream: ClientStream) -> None:
    frame_of_many = frame(*[CallBatch(first_call_id=each, payloads=[b""]) for each in range(1, MANY)])
    steps = stream.accept(frame_of_many)
    next(steps)
    answered = asyncio.ensure_future(stream.all_answered())
    await asyncio.sleep(0)
    assert stream.next_frame() is None
    await asyncio.sleep(0)
    assert not answered.done()
    list(steps)
    assert stream.next_frame() is None
    await answered
