"""Calls of a session that come again while they wait here: they wait for the link that asked last, and start once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.session_records import Record
from replica_service.shell.router_outbox import Outbox
from slotmesh.calls.id_ranges import Range
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Reason
from tests.support.fakes.clock import FakeClock
from tests.support.memory_nodes import MAX_ONGOING, METHOD, ReplicaNode
from tests.unit.replica.hosting import RememberingOutbox, open_link

SESSION = "5e55" * 8


class Router:
    """One stream to the replica."""

    def __init__(self, replica: ReplicaNode) -> None:
        self.engine = replica.engine
        self.link: RouterPeer
        self.outbox: Outbox
        self.link, self.outbox = open_link(replica.engine)
        self._ids = count(1)

    def send(self, ids: Sequence[int], key: str = "", *, epoch: int = 1, attempt: int = 0) -> None:
        for call_id in ids:
            options = ReplicaCallOptions(method=METHOD, content_type=OCTET_STREAM, ordering_key=key)
            run = ReplicaRun(self.link, next(self._ids), [b"%d" % call_id], options, "e", 0.0)
            ids_of_run = range(call_id, call_id + 1)
            run.record = Record(SESSION, epoch, ids_of_run, 1, attempt=attempt, recovers=False)
            self.engine.submit([run])

    def send_together(self, ids: Sequence[int], key: str = "", *, attempt: int = 0, recovers: bool = False) -> None:
        """One run. `recovers`: of calls that are here, of which only the outcomes are asked for."""
        options = ReplicaCallOptions(method=METHOD, content_type=OCTET_STREAM, ordering_key=key)
        payloads = [b"" if recovers else b"%d" % call_id for call_id in ids]
        run = ReplicaRun(self.link, next(self._ids), payloads, options, "e", 0.0)
        run.record = Record(SESSION, 1, ids, len(ids), attempt=attempt, recovers=recovers)
        self.engine.submit([run])

    def results(self) -> list[bytes]:
        frames = iter(self.outbox.next_frame, None)
        return [payload for frame in frames for batch in frame.results.batches for payload in batch.payloads]


@pytest.fixture
def replica() -> Iterator[ReplicaNode]:
    loop = asyncio.new_event_loop()
    yield ReplicaNode(("replica", "life"), FakeClock(), loop)
    loop.close()


def started(replica: ReplicaNode) -> list[bytes]:
    """Begins all that may begin, and ends it."""
    executor, payloads = replica.executor, []
    while executor.startable:
        running = executor.begin(executor.startable[0])
        if running is not None:
            payloads.append(running.payload)
            executor.end(running)
    return payloads


def test_room_that_fenced_calls_leave_starts_no_others_of_their_session(replica: ReplicaNode) -> None:
    first = Router(replica)
    first.send(range(1, MAX_ONGOING + 1))  # an executor has them, and has not begun
    first.send([10, 11], "key")
    asked: list[Range] = [(1, 20)]
    ((_, _, report),) = replica.engine.reconcile([(SESSION, 2, asked)])
    assert (list(report.running), list(report.kept)) == ([], [])
    assert started(replica) == []
    second = Router(replica)
    second.send([10, 11], "key", epoch=2)
    assert started(replica) == [b"10", b"11"]


def test_what_waits_for_a_lost_link_waits_for_the_next_one_instead(replica: ReplicaNode) -> None:
    other, first = Router(replica), Router(replica)
    other.send(range(101, 101 + MAX_ONGOING))  # all permits are taken
    first.send([1, 2])
    first.send([3, 4], "key")
    second = Router(replica)
    second.send([1, 2], attempt=1)
    second.send([3, 4], "key", attempt=1)
    replica.engine.close(first.link)
    assert sorted(started(replica))[:4] == [b"1", b"101", b"102", b"103"]
    assert sorted(second.results()) == [b"result of %d" % call_id for call_id in (1, 2, 3, 4)]


def test_what_runs_for_a_lost_link_is_told_to_the_next_one(replica: ReplicaNode) -> None:
    first, second = Router(replica), Router(replica)
    first.send([1])
    running = replica.executor.begin(replica.executor.startable[0])
    second.send([1], attempt=1)
    replica.engine.close(first.link)
    assert running is not None
    replica.executor.end(running)
    assert started(replica) == []
    assert second.results() == [b"result of 1"]


# A router that gives up a silent link sends its calls again over the next one, and may be heard there first.


@pytest.mark.parametrize("key", ["", "key"])
@pytest.mark.parametrize("is_waiting", [False, True], ids=["in an executor", "waiting"])
def test_an_attempt_that_was_held_up_takes_nothing_from_the_next_one(
    replica: ReplicaNode, key: str, *, is_waiting: bool
) -> None:
    other, lost, newest = Router(replica), Router(replica), Router(replica)
    if is_waiting:
        other.send([*range(101, 101 + MAX_ONGOING)])  # all permits are taken
    lost.link.outbox, newest.link.outbox = held_up, outbox = RememberingOutbox(), RememberingOutbox()
    newest.send([1], key, attempt=2)
    lost.send([1], key, attempt=1)
    assert started(replica).count(b"1") == 1
    assert outbox.results_of == {1: b"result of 1"}
    failure = held_up.failures_of[1]
    assert (failure.reason, failure.executed) == (Reason.SESSION_FENCED, Executed.UNKNOWN)


@pytest.mark.parametrize("recovers", [False, True], ids=["an attempt", "a question for the outcome"])
def test_what_was_held_up_takes_no_running_call_from_the_link_that_has_joined_it(
    replica: ReplicaNode, *, recovers: bool
) -> None:
    first, lost, newest = Router(replica), Router(replica), Router(replica)
    lost.link.outbox, newest.link.outbox = held_up, outbox = RememberingOutbox(), RememberingOutbox()
    first.send_together([1, 2, 3, 4])
    running = replica.executor.begin(replica.executor.startable[0])
    replica.engine.close(first.link)
    newest.send([1], attempt=2)
    lost.send_together([1], attempt=0 if recovers else 1, recovers=recovers)
    assert running is not None
    replica.executor.end(running)
    started(replica)
    assert outbox.results_of == {1: b"result of 1"}
    assert held_up.failures_of[1].reason is Reason.SESSION_FENCED


def test_only_the_calls_that_were_sent_again_are_refused_to_what_was_held_up(replica: ReplicaNode) -> None:
    lost, newest = Router(replica), Router(replica)
    lost.link.outbox, newest.link.outbox = held_up, outbox = RememberingOutbox(), RememberingOutbox()
    newest.send([2], attempt=2)
    lost.send_together([1, 2, 3], attempt=1)
    started(replica)
    assert outbox.results_of == {1: b"result of 2"}
    assert held_up.results_of == {1: b"result of 1", 3: b"result of 3"}
    assert list(held_up.failures_of) == [2]


@pytest.mark.parametrize("recovers", [False, True], ids=["an attempt", "a question for the outcome"])
def test_a_kept_outcome_is_told_to_whoever_asks(replica: ReplicaNode, *, recovers: bool) -> None:
    """A router asks again for a result that its client was too slow to read, as if at a first attempt."""
    newest, other = Router(replica), Router(replica)
    newest.send([1], attempt=2)
    assert started(replica) == [b"1"]
    other.send_together([1], attempt=0 if recovers else 1, recovers=recovers)
    assert other.results() == [b"result of 1"]


def joined(replica: ReplicaNode, key: str = "") -> list[tuple[RouterPeer, RememberingOutbox]]:
    """Three links, each of which waits for the outcome of one of the calls 1, 2 and 3."""
    found = []
    for call_id in (1, 2, 3):
        router = Router(replica)
        router.link.outbox = outbox = RememberingOutbox()
        router.send_together([call_id], key, recovers=True)
        found.append((router.link, outbox))
    return found


def test_what_is_handed_back_is_told_to_every_link_that_waits_for_a_part_of_it(replica: ReplicaNode) -> None:
    first = Router(replica)
    first.send_together([1, 2, 3])  # an executor has them, and gives them back
    links = joined(replica)
    replica.engine.drain()
    assert started(replica) == []
    assert [outbox.refusals_of[1].reason for _, outbox in links] == [Reason.DRAINING] * 3
    assert not any(outbox.results_of or outbox.failures_of for _, outbox in links)


@pytest.mark.parametrize("left", range(3))
@pytest.mark.parametrize("key", ["", "key"])
def test_a_link_that_ends_takes_no_other_with_it_that_waits_for_a_part_of_its_run(
    replica: ReplicaNode, key: str, left: int
) -> None:
    first = Router(replica)
    first.send_together([1, 2, 3], key)
    running = replica.executor.begin(replica.executor.startable[0])
    links = joined(replica, key)
    replica.engine.close(links[left][0])
    assert running is not None
    replica.executor.end(running)
    started(replica)
    told = [outbox.results_of for _, outbox in links]
    assert told == [{} if at == left else {1: b"result of %d" % (at + 1)} for at in range(3)]


def test_what_was_lost_with_a_link_does_not_run_behind_what_came_after_it(replica: ReplicaNode) -> None:
    first = Router(replica)
    replica.engine.close(first.link)  # call 1 was on its way: the router says so of it, and goes on
    second = Router(replica)
    second.send([2, 3], "key")
    assert started(replica) == [b"2", b"3"]
    replica.engine.reconcile([(SESSION, 2, [(1, 9)])])  # the client has not heard of it, and sends all again
    third = Router(replica)
    third.send([1], "key", epoch=2)
    third.send([1], "other", epoch=2)
    third.send([4], "key", epoch=2)
    assert started(replica) == [b"1", b"4"]
    frames = [frame.results for frame in iter(third.outbox.next_frame, None)]
    assert [error.failure.reason for frame in frames for error in frame.errors] == ["REPLICA_LOST"]
