"""STOP: once a call of a key and generation has failed, those after it do not run."""

from __future__ import annotations

from math import inf

from router_service.core.callers import MAX_STOPS, Window
from router_service.core.events import CallsSubmitted, UploadCompleted
from router_service.core.lifecycle.deadlines_and_cancellation import PATIENCE_S
from router_service.core.runs import Caller
from slotmesh.errors import Executed, Reason
from slotmesh.streams.chunks import Announced
from slotmesh.streams.limits import MAX_STOP_GENERATIONS
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import options

STOPPED = {Reason.PREDECESSOR_FAILED}


def world_of(window: int = 10) -> tuple[World, Caller]:
    world = World({"b": ["r"]}, owner=("r", 1))
    world.report("r", keyed_window=window)
    return world, world.connect()


def submit(
    world: World, ids: list[int], by: Caller, generation: int = 1, ordering_key: str = "k", timeout_s: float = inf
) -> None:
    world.submit(ids, by=by, ordering_key=ordering_key, stop_generation=generation, timeout_s=timeout_s)


def test_what_waits_behind_a_call_that_fails_does_not_run() -> None:
    world, client = world_of(window=1)
    submit(world, [1], client)
    submit(world, [2, 3], client)
    submit(world, [4], client)
    world.fail("r")
    assert world.reasons([2, 3, 4]) == STOPPED
    assert {world.failures[each].executed for each in (2, 3, 4)} == {Executed.NO}
    assert world.got("r") == [1]


def test_a_silent_replica_is_not_waited_for_though_others_of_the_run_wait() -> None:
    world, client = world_of(window=2)
    submit(world, [1, 2, 3, 4], client)
    world.cancel((1, 1), by=client)
    assert 1 not in world.outcomes, "the replica says what became of it"
    world.at(PATIENCE_S / 2)
    world.cancel((2, 2), by=client)
    world.at(PATIENCE_S)
    assert world.outcomes[1] == Reason.CANCELLED
    assert world.failures[1].executed is Executed.UNKNOWN


def test_what_comes_later_does_not_run_either_until_a_new_generation() -> None:
    world, client = world_of()
    submit(world, [1], client)
    world.fail("r")
    submit(world, [2], client)
    submit(world, [3], client, generation=2)
    submit(world, [4], client, generation=1)
    assert world.reasons([2, 4]) == STOPPED
    assert world.got("r") == [1, 3]


def test_calls_that_go_on_are_not_stopped() -> None:
    world, client = world_of(window=1)
    submit(world, [1], client)
    submit(world, [2], client, generation=0)
    submit(world, [3], client, ordering_key="j")
    world.fail("r")
    world.complete("r")
    world.complete("r")
    assert world.reasons([2, 3]) == {OK}


def test_a_key_of_another_session_is_not_stopped() -> None:
    world, client = world_of()
    other = world.connect(session_id="f" * 32)
    submit(world, [1], client)
    world.fail("r")
    submit(world, [2], other)
    assert world.got("r") == [1, 2]


def test_calls_before_the_one_that_failed_go_on() -> None:
    world, client = world_of(window=1)
    submit(world, [1], client)
    submit(world, [2, 3, 4, 5], client)
    world.cancel((3, 3), by=client)
    assert world.reasons([4, 5]) == STOPPED
    world.complete("r")
    assert world.got("r") == [1, 2]


def test_a_deadline_in_the_queue_stops_what_is_behind() -> None:
    world, client = world_of(window=1)
    submit(world, [1], client)
    submit(world, [2], client, timeout_s=1.0)
    submit(world, [3], client)
    world.at(2.0)
    assert world.reasons([2]) == {Reason.DEADLINE_IN_QUEUE}
    assert world.reasons([3]) == STOPPED


def test_what_a_replica_had_when_it_was_lost_stops_what_waits() -> None:
    world, client = world_of(window=1)
    submit(world, [1], client)
    submit(world, [2], client)
    world.lose("r")
    assert world.reasons([1]) == {Reason.REPLICA_LOST}
    assert world.reasons([2]) == STOPPED


def test_what_is_refused_after_the_failure_does_not_come_back() -> None:
    world, client = world_of()
    submit(world, [1], client)
    submit(world, [2], client)
    world.fail("r", 1)
    world.refuse("r", 2, reason=Reason.STALE_TABLE)
    assert world.reasons([2]) == STOPPED


def test_what_is_in_the_outbox_is_withdrawn() -> None:
    world, client = world_of()
    world.lazy = True
    submit(world, [1], client)
    world.cut("r")
    submit(world, [2], client)
    world.fail("r", 1)
    assert world.reasons([2]) == STOPPED
    world.cut("r")
    assert world.got("r") == [1]


def test_what_waits_for_its_payload_is_stopped() -> None:
    world, client = world_of()
    submit(world, [1], client)
    fields = {"ordering_key": "k", "stop_generation": 1}
    world.step(CallsSubmitted(client, "e", [(options(**fields), [2], [Announced(9)])]))
    world.fail("r")
    assert world.reasons([2]) == STOPPED


def test_the_first_failure_of_each_generation_counts() -> None:
    caller = Caller(Window(1, 1))
    assert caller.stops.stop("k", 1, 5)
    assert caller.stops.stop("k", 1, 3)
    assert not caller.stops.stop("k", 1, 9)
    assert caller.stops.stop("k", 2, 12)
    assert caller.stops.has_stopped("k", 1, 4)
    assert caller.stops.has_stopped("k", 2, 13)
    assert not caller.stops.has_stopped("k", 2, 11)
    assert not caller.stops.has_stopped("k", 3, 20)


def test_the_newest_generations_of_a_key_are_known() -> None:
    caller = Caller(Window(1, 1))
    for generation in range(1, 3 + MAX_STOP_GENERATIONS):
        assert caller.stops.stop("k", generation, 10 * generation)
    assert not caller.stops.has_stopped("k", 2, 25)
    assert caller.stops.has_stopped("k", 3, 35)
    assert not caller.stops.stop("k", 1, 10), "it is over"


def test_an_older_generation_stops_though_several_newer_ones_have_failed_before() -> None:
    world, client = world_of(window=1)
    submit(world, [1, 2], client)
    for generation in range(2, 8):
        call_id = 10 * generation
        submit(world, [call_id], client, generation=generation)
        world.cancel((call_id, call_id), by=client)
    world.fail("r")
    assert world.reasons([2]) == STOPPED
    assert world.got("r") == [1]


def test_a_call_that_is_handed_back_when_a_newer_generation_has_failed_does_not_run() -> None:
    world, client = world_of()
    submit(world, [1], client)
    submit(world, [2], client)
    world.fail("r", 1)
    submit(world, [3], client, generation=2)
    world.fail("r", 3)
    world.refuse("r", 2, reason=Reason.STALE_TABLE)
    assert world.reasons([2]) == STOPPED


def test_what_is_known_of_keys_is_bounded() -> None:
    caller = Caller(Window(1, 1))
    for number in range(MAX_STOPS + 10):
        caller.stops.stop(str(number), 1, 1)
    assert len(caller.stops) == MAX_STOPS
    assert not caller.stops.has_stopped("0", 1, 2)


def announce(world: World, call_id: int, by: Caller, generation: int = 1) -> None:
    keyed = options(ordering_key="k", stop_generation=generation)
    world.step(CallsSubmitted(by, "e", [(keyed, [call_id], [Announced(9)])]))


def test_a_call_whose_payload_was_under_way_when_a_later_one_failed_runs() -> None:
    world, client = world_of()
    announce(world, 1, client)
    submit(world, [2], client)
    world.cancel((2, 2), by=client)
    world.step(UploadCompleted(client, 1, b"1"))
    assert world.got("r") == [1]


def test_what_waited_behind_a_stopped_payload_goes_on_at_once() -> None:
    world, client = world_of()
    submit(world, [1], client)
    announce(world, 2, client)
    submit(world, [3], client, generation=2)
    world.fail("r")
    assert world.reasons([2]) == STOPPED
    assert world.got("r") == [1, 3]
