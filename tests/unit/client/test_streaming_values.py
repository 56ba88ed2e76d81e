"""The values of one call between the stream and the loop: order, credit, and the end of the iteration."""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.client.calls.outbox import CallOutbox
from slotmesh.client.calls.sent_parts import finish
from slotmesh.client.calls.values import TAKE_BYTES, TAKE_VALUES, CallValues
from slotmesh.client.stream.incoming_results import ArrivingValues
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.errors import Failure, HandlerError, Reason
from slotmesh.status import to_exception
from tests.unit.client.parts import NONE_LARGE, make_call, make_part, make_spec

pytestmark = pytest.mark.asyncio


class Line:
    """Two calls that stream, and one that does not, sent; and what the router is told."""

    def __init__(self) -> None:
        self.pending = PendingCalls()
        self.woken = 0
        self.arriving = ArrivingValues(self.pending, self._wake)
        self.one, self.two = CallValues(), CallValues()
        outbox, spec = CallOutbox(), make_spec(streaming=True)
        for values in (self.one, self.two):
            make_call(outbox, spec, b"x", values)
        for part in outbox.take(9, 99, NONE_LARGE):
            self.pending.add(part)
        self.pending.add(make_part(1))

    def _wake(self) -> None:
        self.woken += 1

    def bring(self, *ids: int, size: int = 1) -> None:
        self.arriving.accept(list(ids), [b"v" * size] * len(ids), "")

    def end(self, call_id: int) -> None:
        for part, at, _, calls in self.pending.settle([call_id]):
            finish(part, at, calls)

    def told(self) -> dict[int, int]:
        frame = self.arriving.take_frame()
        return {} if frame is None else dict(zip(frame.call_ids, frame.counts, strict=True))


async def take(values: CallValues, count: int) -> None:
    for _ in range(count):
        await values.take()


@pytest.fixture
def line() -> Line:
    return Line()


async def test_the_router_hears_when_half_of_the_credit_was_taken(line: Line) -> None:
    line.bring(*[1] * 300)
    await take(line.one, TAKE_VALUES - 1)
    assert not line.woken
    assert line.told() == {}
    await take(line.one, 1)
    assert line.woken
    await take(line.one, 2)
    assert line.told() == {1: TAKE_VALUES + 2}, "whatever was taken until the frame leaves"
    await take(line.one, TAKE_VALUES - 1)
    assert line.told() == {}


async def test_or_half_of_it_in_bytes(line: Line) -> None:
    line.bring(1, 1, 2, size=TAKE_BYTES // 2)
    await take(line.one, 1)
    await take(line.two, 1)
    assert line.told() == {}
    await take(line.one, 1)
    assert line.told() == {1: 2}
    line.bring(2, size=TAKE_BYTES - 1)
    await take(line.two, 1)
    assert line.told() == {2: 2}


async def test_calls_share_a_frame(line: Line) -> None:
    line.bring(*[1, 2] * TAKE_VALUES)
    await take(line.one, TAKE_VALUES)
    await take(line.two, TAKE_VALUES)
    assert line.told() == {1: TAKE_VALUES, 2: TAKE_VALUES}


async def test_of_a_call_that_has_ended_nothing_is_told(line: Line) -> None:
    line.bring(*[1, 2] * TAKE_VALUES)
    await take(line.one, TAKE_VALUES)
    line.end(1)
    line.end(2)
    assert line.told() == {}, "it was due, and has ended"
    await take(line.two, TAKE_VALUES)
    assert line.told() == {}
    with pytest.raises(StopAsyncIteration):
        await line.two.take()


async def test_what_belongs_to_nobody_is_passed_over(line: Line) -> None:
    line.bring(3, 4, 1, 0)
    await take(line.one, 1)
    line.one.give_up()
    line.bring(1, 2)
    assert (line.pending.calls, line.pending.strays) == (3, 0), "values settle nothing"
    line.end(1)
    line.bring(1)
    await take(line.two, 1)
    with pytest.raises(StopAsyncIteration):
        await line.one.take()


async def test_a_lost_value_fails_its_call_which_goes_on_for_the_router(line: Line) -> None:
    line.bring(1)
    line.arriving.lose(1, Failure(reason=Reason.INTERNAL, message="gone"))
    line.arriving.lose(3, Failure(reason=Reason.INTERNAL, message="of no call that streams"))
    line.bring(1)
    await take(line.one, 1)
    with pytest.raises(Exception, match="gone"):
        await line.one.take()
    assert line.pending.take_unwanted(before=9) == [(1, 1)]


async def test_only_calls_that_stream_are_drained_with_their_connection(line: Line) -> None:
    line.end(1)
    assert [(part.first + at, count) for part, at, _, count in line.pending.drain_streaming()] == [(2, 1)]
    assert line.pending.unanswered() == [(3, 3)]


async def test_who_waits_hears_of_values_failures_and_ends() -> None:
    failure = to_exception(Failure(reason=Reason.HANDLER_ERROR, message="no"))
    for happens, outcome in (("set_result", StopAsyncIteration), ("set_exception", HandlerError)):
        values = CallValues()
        waiting = asyncio.ensure_future(values.take())
        await asyncio.sleep(0)
        getattr(values, happens)(failure if happens == "set_exception" else None)
        assert values.done()
        with pytest.raises(outcome):
            await waiting
        with pytest.raises(StopAsyncIteration):
            await values.take()
