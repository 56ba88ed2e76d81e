from __future__ import annotations

from typing import Any

from slotmesh.client.calls.outbox import CallOutbox
from slotmesh.client.calls.queues import CallQueue, LaneGroups, LaneStop, StopGenerations
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.limits import MAX_STOP_GENERATIONS
from tests.unit.client.parts import NONE_LARGE, make_call, make_spec

PLENTY = 10**9
FAILED = Failure(reason=Reason.HANDLER_ERROR, message="no", executed=Executed.YES)
LOST = Failure(reason=Reason.REPLICA_LOST, message="gone", executed=Executed.UNKNOWN)


class Told:
    """Who hears of failures."""

    def __init__(self) -> None:
        self.failures: list[int] = []
        self.generations: StopGenerations = StopGenerations(lambda queue, generation: self.failures.append(generation))
        self.queue: CallQueue[Any] = CallQueue()

    def stop(self) -> LaneStop:
        return self.generations.stop_of(self.queue, "k")


def test_a_failure_stops_what_was_sent_after_it_and_nothing_before() -> None:
    told = Told()
    stop = told.stop()
    stop.fail(told.queue, 1, 5, FAILED)
    assert stop.failed == 1
    assert [stop.is_after_failure(1, call_id) for call_id in (4, 5, 6)] == [False, False, True]
    assert not stop.is_after_failure(2, 7)
    stop.fail(told.queue, 1, 3, FAILED)
    assert stop.is_after_failure(1, 4)
    assert told.failures == [1]


def test_each_generation_that_has_failed_stops_its_own() -> None:
    told = Told()
    stop = told.stop()
    stop.fail(told.queue, 1, 5, FAILED)
    stop.fail(told.queue, 2, 9, FAILED)
    assert [stop.is_after_failure(1, call_id) for call_id in (5, 6, 9)] == [False, True, True]
    assert [stop.is_after_failure(2, call_id) for call_id in (7, 9, 10)] == [False, False, True]
    stop.fail(told.queue, 1, 4, FAILED)
    assert stop.is_after_failure(1, 5), "news of an older one comes, too"
    for generation in range(3, 3 + MAX_STOP_GENERATIONS):
        stop.fail(told.queue, generation, 10 * generation, FAILED)
    assert not stop.is_after_failure(1, 6)


def test_a_failure_that_was_never_sent_stops_nothing_that_was() -> None:
    told = Told()
    stop = told.stop()
    stop.fail(told.queue, 1, 0, FAILED)
    assert stop.failed == 1
    assert not stop.is_after_failure(1, 100)
    assert told.failures == []
    stop.fail(told.queue, 1, 7, FAILED)
    assert told.failures == [1], "what waits before the one that was never sent stops now"
    assert stop.is_after_failure(1, 100)


def test_generations_go_up_and_beyond_all_that_failed() -> None:
    told = Told()
    stop = told.stop()
    assert stop.generation == 1
    stop.reset()
    stop.reset()
    assert stop.generation == 3
    stop.fail(told.queue, 3, 1, FAILED)
    stop.fail(told.queue, 2, 2, FAILED)
    assert stop.failed == 3, "what is stale changes nothing"
    assert told.generations.stop_of(CallQueue(), "new").generation == 4
    stop.reset()
    assert stop.generation == 4
    assert told.stop() is stop


def test_executed_is_unknown_of_what_was_sent_behind_an_unknown_failure() -> None:
    told = Told()
    stop = told.stop()
    stop.fail(told.queue, 1, 5, FAILED)
    assert stop.refusal().executed is Executed.NO
    assert stop.refusal(was_sent=True).executed is Executed.UNKNOWN, (
        "it may have shared a batch with the one that failed"
    )
    stop.fail(told.queue, 1, 6, LOST)
    stop.fail(told.queue, 1, 7, stop.refusal(was_sent=True))
    assert "REPLICA_LOST" in stop.refusal().message, "the first cause is told, not its consequences"


def test_other_lanes_and_generations_stay_in_the_outbox() -> None:
    outbox, told, groups = CallOutbox(), Told(), LaneGroups()
    queues: dict[str, CallQueue[Any]] = {key: CallQueue(groups) for key in "ab"}
    stops = {key: told.generations.stop_of(queue, key) for key, queue in queues.items()}
    old = {key: make_spec("add", queues[key], ordering_key=key, after_failure="stop") for key in "ab"}
    free = make_spec("add", queues["a"], ordering_key="a")
    for number in range(12):
        make_call(outbox, old["a"], b"a%d" % number)
    make_call(outbox, old["b"], b"b")
    make_call(outbox, free, b"free")
    stops["a"].reset()
    new = make_spec("add", queues["a"], ordering_key="a", after_failure="stop")
    make_call(outbox, new, b"new")
    taken = outbox.take_stopped(queues["a"], 1)
    assert [payload for part in taken for payload in part.payloads] == [b"a%d" % number for number in range(12)]
    left = outbox.take(PLENTY, PLENTY, NONE_LARGE)
    assert [payload for part in left for payload in part.payloads] == [b"b", b"free", b"new"]
    assert not outbox


def test_what_waits_behind_a_call_whose_timeout_has_passed_stops_and_nothing_before_it_or_beside_it() -> None:
    outbox, told, groups = CallOutbox(), Told(), LaneGroups()
    queues: dict[str, CallQueue[Any]] = {key: CallQueue(groups) for key in "ab"}
    for key, queue in queues.items():
        told.generations.stop_of(queue, key)
    patient = {key: make_spec("add", queues[key], ordering_key=key, after_failure="stop") for key in "ab"}
    hasty = make_spec("add", queues["a"], ordering_key="a", after_failure="stop", timeout_s=1.0)
    make_call(outbox, patient["a"], b"before")
    make_call(outbox, hasty, b"late")
    outbox.seal(10.0)
    make_call(outbox, patient["a"], b"behind")
    make_call(outbox, hasty, b"behind, too")
    make_call(outbox, patient["b"], b"beside")
    assert outbox.take_overdue(10.9) == ([], [])
    overdue, behind = outbox.take_overdue(11.0)
    assert [payload for part in overdue for payload in part.payloads] == [b"late"]
    assert [payload for part in behind for payload in part.payloads] == [b"behind", b"behind, too"]
    left = outbox.take(PLENTY, PLENTY, NONE_LARGE)
    assert sorted(payload for part in left for payload in part.payloads) == [b"before", b"beside"]
