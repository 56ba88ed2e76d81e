"""Unread results are bounded over all streams: the streams with most of them drop theirs first."""

from __future__ import annotations

from math import inf

import pytest

from router_service.core.callers import Window
from router_service.core.commands import DeliverFailure, DeliverResults
from router_service.core.failures import NOT_READ
from router_service.core.limits.unread_results import (
    AGAIN_S,
    BRAKE_SHARE,
    BRAKE_STREAMS,
    CALL_BYTES,
    FRAMES,
    MAX_LEAVING_BYTES,
    MIN_FRAME_BYTES,
    STUCK_S,
    Unread,
)
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from router_service.shell.clients.outbox import ResultOutbox
from router_service.shell.dispatcher import Dispatcher
from slotmesh.convert.batches import ids_of_results
from slotmesh.errors import Reason
from slotmesh.transport.pump import Pacer
from slotmesh.v1 import call_pb2
from tests.support.fakes.clock import FakeClock
from tests.unit.router.world import World
from tests.unit.router.world_callers import options, session_caller

MAX_BYTES = 1_000_000
SIZE = 10_000


class Holder:
    """Lets go of everything, or of nothing."""

    def __init__(self, unread: Unread, *, can_shed: bool = True) -> None:
        self.unread = unread
        self.can_shed = can_shed
        self.stuck_since = inf
        self.size = 0
        self.asked: list[bool] = []

    def queue(self, size: int) -> None:
        self.size += size
        self.unread.queue(self, size)

    def shed(self, *, is_stuck: bool) -> None:
        self.asked.append(is_stuck)
        if self.can_shed:
            self.queue(-self.size)


class Stream:
    """An outbox that nobody reads, unless a frame is taken."""

    def __init__(self, unread: Unread, clock: FakeClock, *, in_session: bool = False) -> None:
        dispatcher = Dispatcher(RouterScheduler(lambda: 0.5), clock, lambda *_: None)  # type: ignore[arg-type]
        self.caller = session_caller() if in_session else Caller(Window(8192, 2**30))
        self.replica = World({"b": ["r"]}).replicas["r"]
        self.outbox = ResultOutbox(self.caller, "e", dispatcher, Pacer(lambda: None, clock.now), unread)

    def results(self, first: int, count: int, size: int = SIZE) -> None:
        ids, payloads = range(first, first + count), [b"x" * size] * count
        self.caller.admit(ids, 0)
        self.outbox.add(DeliverResults(self.caller, ids, payloads, "", self.replica, 0, first, 0, options()))

    def frame(self) -> call_pb2.ResultFrame:
        """The next one, which nobody has read yet."""
        self.outbox.written()
        frame = self.outbox.next_frame()
        assert frame is not None
        self.outbox.leaves()
        return frame.results

    @property
    def queued(self) -> list[type]:
        return [type(each) for each, _, _ in self.outbox._outcomes]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def unread(clock: FakeClock) -> Unread:
    return Unread(clock.now, MAX_BYTES)


def test_who_has_most_lets_go_and_no_other(unread: Unread) -> None:
    holders = [Holder(unread) for _ in range(3)]
    for holder, size in zip(holders, (100_000, 700_000, 200_000), strict=True):
        holder.queue(size)
    assert not any(each.asked for each in holders)
    holders[0].queue(1)
    assert [len(each.asked) for each in holders] == [0, 1, 0]
    assert unread.queued == 300_001


def test_who_is_stuck_lets_go_before_those_who_read(unread: Unread, clock: FakeClock) -> None:
    *read, stuck = [Holder(unread) for _ in range(BRAKE_STREAMS)]
    stuck.stuck_since = clock.now()
    stuck.queue(100_000)
    clock.advance(STUCK_S)
    for each in read:
        each.queue(MAX_BYTES // BRAKE_SHARE // len(read))
    # Below the bound of all it keeps what could not be had again.
    assert ([each.asked for each in read], stuck.asked) == ([[]] * len(read), [False])
    stuck.queue(MAX_BYTES)
    assert stuck.asked == [False, True]


def test_of_few_streams_one_that_is_stuck_keeps_what_fits(unread: Unread, clock: FakeClock) -> None:
    stuck = Holder(unread)
    stuck.stuck_since = clock.now()
    clock.advance(STUCK_S)
    stuck.queue(MAX_BYTES)
    assert stuck.asked == []
    stuck.queue(1)
    assert stuck.asked == [True]


def test_the_bound_is_kept_whenever_others_were_asked_last(unread: Unread) -> None:
    holders = [Holder(unread) for _ in range(BRAKE_STREAMS)]
    for holder in holders:
        holder.queue(1)
    holders[0].queue(MAX_BYTES * 99 // 100)
    assert not holders[0].asked
    holders[0].queue(MAX_BYTES // 50)
    assert holders[0].asked == [False]
    assert unread.queued <= MAX_BYTES


class Braked:
    """Streams that let go of nothing, and what the brake was told."""

    def __init__(self, clock: FakeClock, streams: int) -> None:
        self.told: list[bool] = []
        self.unread = Unread(clock.now, MAX_BYTES, self.told.append)
        self.holders = [Holder(self.unread, can_shed=False) for _ in range(streams)]
        for holder in self.holders:
            holder.queue(1)

    def queue(self, size: int) -> None:
        """So much in all, most of it by one stream."""
        self.holders[0].queue(size - self.unread.queued)
        self.unread.written()


def test_the_brake_is_on_while_too_much_is_queued(clock: FakeClock) -> None:
    router = Braked(clock, BRAKE_STREAMS)
    router.queue(MAX_BYTES // BRAKE_SHARE)
    assert router.told == []
    router.queue(MAX_BYTES // BRAKE_SHARE + 1)
    router.queue(MAX_BYTES // BRAKE_SHARE // 2 + 1)
    assert router.told == [True]
    router.queue(MAX_BYTES // BRAKE_SHARE // 2)
    router.queue(BRAKE_STREAMS)
    assert router.told == [True, False]


def test_few_streams_are_never_braked(clock: FakeClock) -> None:
    router = Braked(clock, BRAKE_STREAMS - 1)
    router.queue(MAX_BYTES + 1)
    assert router.told == []


def test_the_brake_is_off_when_it_was_on_for_long_and_on_again_for_what_comes_then(clock: FakeClock) -> None:
    router = Braked(clock, BRAKE_STREAMS)
    router.queue(MAX_BYTES // 2)
    router.unread.release()
    router.unread.release()
    assert router.told == [True, False]
    clock.advance(AGAIN_S)
    router.queue(MAX_BYTES // 2 + 1)
    assert router.told == [True, False, True]
    assert router.unread.brakes == 2


def test_the_brake_is_off_when_streams_have_written_what_they_had(clock: FakeClock) -> None:
    told: list[bool] = []
    unread = Unread(clock.now, MAX_BYTES, told.append)
    streams = [Stream(unread, clock) for _ in range(BRAKE_STREAMS)]
    for stream in streams:
        stream.results(1, MAX_BYTES // BRAKE_SHARE // SIZE // BRAKE_STREAMS + 1)
    assert told == [True]
    for stream in streams:
        while stream.outbox:
            stream.frame()
        stream.outbox.written()
    assert told == [True, False]


def test_calls_that_fail_alike_are_not_counted_one_by_one(unread: Unread, clock: FakeClock) -> None:
    stream = Stream(unread, clock)
    stream.caller.admit(range(1, 8001), 0)
    stream.outbox.add(DeliverFailure(stream.caller, range(1, 8001), NOT_READ, 0))
    assert unread.queued < 2 * CALL_BYTES + len(NOT_READ.message)


def test_who_can_let_go_of_nothing_is_not_asked_for_each_result(unread: Unread, clock: FakeClock) -> None:
    holder = Holder(unread, can_shed=False)
    holder.queue(MAX_BYTES + 1)
    for _ in range(10):
        holder.queue(1)
    assert len(holder.asked) == 1
    clock.advance(AGAIN_S)
    holder.queue(1)
    assert len(holder.asked) == 2
    holder.queue(MAX_BYTES // 8)
    assert len(holder.asked) == 3


def test_what_a_stream_had_goes_with_it(unread: Unread) -> None:
    holder = Holder(unread)
    holder.queue(500_000)
    unread.left(holder)
    unread.left(holder)
    assert unread.queued == 0


def test_the_more_is_being_written_the_smaller_is_the_next_frame(unread: Unread) -> None:
    assert unread.frame_bytes == MAX_LEAVING_BYTES // FRAMES
    sizes = []
    for _ in range(200):  # none of which is ever read
        sizes.append(unread.frame_bytes)
        unread.leaving += sizes[-1]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == MIN_FRAME_BYTES
    assert unread.leaving <= MAX_LEAVING_BYTES + 200 * MIN_FRAME_BYTES


def test_results_of_a_session_are_dropped_for_replicas_have_them(unread: Unread, clock: FakeClock) -> None:
    streams = [Stream(unread, clock, in_session=True) for _ in range(5)]
    for stream in streams:
        stream.results(1, 40)
    assert unread.queued <= MAX_BYTES
    assert [bool(each.queued) for each in streams].count(False) == 3
    assert all(each.outbox for each in streams), "the others fetch theirs"


def test_what_nobody_else_has_is_kept_while_the_client_reads(unread: Unread, clock: FakeClock) -> None:
    reads, stuck = Stream(unread, clock), Stream(unread, clock)
    for stream in (reads, stuck):
        stream.results(1, 60)
    stuck.frame()
    clock.advance(STUCK_S)
    reads.frame()
    reads.results(61, 60)
    stuck.results(61, 60)
    assert reads.queued == [DeliverResults]
    assert set(stuck.queued) == {DeliverFailure}
    (errors,) = stuck.frame().errors[:1]
    assert errors.failure.reason == Reason.RESULT_EVICTED
    assert errors.failure.executed == call_pb2.EXECUTED_YES


@pytest.mark.parametrize("in_session", [False, True])
def test_all_is_counted_until_it_was_written(unread: Unread, clock: FakeClock, in_session: bool) -> None:
    stream = Stream(unread, clock, in_session=in_session)
    stream.results(1, 50)
    assert (unread.queued, unread.leaving) == (50 * (SIZE + CALL_BYTES), 0)
    frame = stream.frame()
    taken = sum(len(ids_of_results(each)) for each in frame.batches)
    assert (unread.queued + unread.leaving, unread.leaving) == (50 * (SIZE + CALL_BYTES), taken * (SIZE + CALL_BYTES))
    while stream.outbox:
        stream.frame()
    stream.outbox.written()
    assert (unread.queued, unread.leaving) == (0, 0)
    stream.results(51, 10)
    stream.frame()
    stream.results(61, 10)
    stream.outbox.close()
    stream.results(71, 10)
    assert (unread.queued, unread.leaving) == (0, 0)


def test_results_that_came_together_leave_in_frames_that_fit(unread: Unread, clock: FakeClock) -> None:
    stream = Stream(unread, clock)
    stream.results(1, 50)
    unread.leaving = MAX_LEAVING_BYTES
    told = []
    while stream.outbox:
        frame = stream.frame()
        assert sum(len(payload) for batch in frame.batches for payload in batch.payloads) <= 2 * MIN_FRAME_BYTES
        told += [call_id for batch in frame.batches for call_id in ids_of_results(batch)]
        unread.leaving = MAX_LEAVING_BYTES
    assert told == list(range(1, 51))
    assert stream.caller.calls == 0
