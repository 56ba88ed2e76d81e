"""More calls than fit: which are refused, which are not, and with which failures."""

from __future__ import annotations

import pytest

from router_service.core.callers import Window
from router_service.core.calls import Flow
from router_service.core.events import CallerLeft
from router_service.core.runs import Caller
from slotmesh.errors import Executed, Reason
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields, caller

KEYED = [pytest.param({}, id="unkeyed"), pytest.param({"ordering_key": "k"}, id="keyed")]


def full(**bounds: int) -> World:
    """A world without room at its replica, and with a small queue."""
    world = World({"b": ["r"]}, slots=4, owner=("r", 1), settings=bounds)
    world.report("r", others=4, keyed_window=0)
    return world


@pytest.mark.parametrize("fields", KEYED)
@pytest.mark.parametrize("bound", [0, 1])
def test_a_burst_that_fits_the_free_slots_is_not_refused(bound: int, fields: Fields) -> None:
    world = World({"b": ["r"]}, slots=4, owner=("r", 1), settings={"max_queued_calls": bound})
    for call_id in range(4):
        world.submit([call_id], by=caller(), **fields)
    assert world.at_replica("r") == [0, 1, 2, 3]
    assert not world.outcomes


@pytest.mark.parametrize("bound", [0, 1])
def test_one_run_that_fits_the_free_slots_of_several_replicas_is_not_refused(bound: int) -> None:
    world = World({"b": ["r1", "r2", "r3"]}, slots=5, settings={"max_queued_calls": bound})
    world.submit(range(15))
    assert sum(len(world.held[name]) for name in ("r1", "r2", "r3")) == 15


def test_what_fits_nowhere_is_refused_and_the_rest_is_not() -> None:
    world = World({"b": ["r"]}, slots=4, settings={"max_queued_calls": 3})
    world.submit(range(10))
    assert world.at_replica("r") == [0, 1, 2, 3]
    assert world.queued == {"b": 3}
    assert world.outcomes == dict.fromkeys([7, 8, 9], Reason.QUEUE_FULL)
    for _ in range(2):
        world.complete("r")
    assert world.reasons(range(7)) == {OK}


def test_a_completion_makes_room_at_once() -> None:
    world = World({"b": ["r"]}, slots=1, settings={"max_queued_calls": 1})
    world.submit([1])
    for call_id in range(2, 50):
        world.submit([call_id])
        world.complete("r")
    assert Reason.QUEUE_FULL not in world.outcomes.values()


@pytest.mark.parametrize("fields", KEYED)
def test_a_refused_run_is_one_failure(fields: Fields) -> None:
    world = full(max_queued_calls=10)
    world.submit(range(1000), **fields)
    (command,) = world.failure_commands
    assert list(command.ids) == list(range(10, 1000))
    assert (command.failure.reason, command.failure.executed) == (Reason.QUEUE_FULL, Executed.NO)
    assert command.failure.metadata["backend"] == "b"
    assert command.size == sum(len(str(each)) for each in range(10, 1000))


def test_bytes_are_bounded_too() -> None:
    world = full(max_queued_bytes=40)
    world.submit(range(100, 120))
    assert world.queued == {"b": 13}
    assert world.reasons(range(113, 120)) == {Reason.QUEUE_FULL}


def test_a_flood_leaves_room_for_who_has_little_waiting() -> None:
    world, quiet = full(max_queued_calls=100), caller()
    world.submit(range(1000))
    world.submit([5000], by=quiet)
    assert 5000 not in world.outcomes
    assert world.queued == {"b": 101}
    world.report("r")
    assert world.got("r")[0] == 5000, "few calls go ahead"


def test_much_room_at_once_is_shared_too() -> None:
    world, quiet = World({"b": ["r"]}, slots=500, settings={"max_queued_calls": 10_000}), caller()
    world.report("r", others=500)
    world.submit(range(1000))
    world.submit(range(5000, 5010), by=quiet)
    world.report("r")
    assert world.at_replica("r")[:100] == [*range(64), *range(5000, 5010), *range(64, 90)]


def test_a_flood_of_many_callers_of_one_flow_waits_behind_itself() -> None:
    """Unary calls are a caller each; those of one peer share a flow."""
    world, flow, other = full(max_queued_calls=10_000), Flow(), caller()
    for call_id in range(1000):
        world.submit([call_id], by=Caller(Window(1, 1), flow))
    world.submit([5000], by=other)
    world.report("r")
    while 5000 not in world.got("r"):
        world.complete("r")
    assert len(world.got("r")) <= 64 + 4


def test_the_retry_delay_is_what_the_queue_needs_to_drain() -> None:
    world = World({"b": ["r"]}, slots=10, settings={"max_queued_calls": 1000})
    world.submit(range(1010))
    for step in range(1, 51):  # 100 a second
        world.now = step / 10
        world.complete("r")
        world.submit(range(10_000 + 10 * step, 10_010 + 10 * step))
    assert Reason.QUEUE_FULL not in world.outcomes.values()
    world.submit(range(5000, 5300), by=caller())
    delays = {world.failures[each].retry_delay_s for each in range(5016, 5300)}
    (delay_s,) = delays
    assert delay_s == pytest.approx(10.0, rel=0.25)  # 1,000 calls at 100 a second, a fifth up or down


def test_retry_delays_of_several_refusals_differ() -> None:
    world = full(max_queued_calls=1)
    world.submit([0])
    world.submit(range(1, 2), by=world.caller)
    for call_id in range(2, 30):
        world.submit([call_id])
    delays = [world.failures[each].retry_delay_s or 0.0 for each in range(1, 30)]
    assert len(set(delays)) > 20
    assert max(delays) <= 1.5 * min(delays)


@pytest.mark.parametrize("fields", KEYED)
def test_what_a_replica_hands_back_is_not_refused_for_room(fields: Fields) -> None:
    world = World({"b": ["r"]}, slots=4, owner=("r", 1), settings={"max_queued_calls": 1})
    world.submit(range(4), **fields)
    world.refuse("r", others=4, keyed_window=0)
    assert not world.outcomes
    assert world.queued == {"b": 4}


@pytest.mark.parametrize(
    "way", ["complete", "fail", "refuse", "cancel", "leave", "expire", "lose", "remove endpoint", "remove backend"]
)
@pytest.mark.parametrize("fields", KEYED)
def test_what_waits_is_given_back_exactly_once(way: str, fields: Fields) -> None:
    world = World({"b": ["r"]}, slots=3, owner=("r", 1), settings={"max_queued_calls": 4})
    world.report("r", keyed_window=3)
    account = world.scheduler.topology.backends["b"].account
    world.submit(range(3), timeout_s=50.0, **fields)
    world.submit(range(3, 9), timeout_s=50.0, **fields)
    assert (account.calls, account.size) == (4, 4)
    match way:
        case "complete":
            for _ in range(3):
                world.complete("r")
        case "fail":
            for _ in range(3):
                world.fail("r")
        case "refuse":
            world.refuse("r", keyed_window=3)
            world.owner = ("r", 2)
            world.push()
            for _ in range(3):
                world.complete("r")
        case "cancel":
            world.cancel((4, 5))
            world.cancel((0, 100))
        case "leave":
            world.do(world.scheduler.step(CallerLeft(world.caller), 0.0))
        case "expire":
            world.at(30.0)
            world.at(50.0)
        case "lose":
            world.lose("r")
            world.at(30.0)
        case "remove endpoint":
            world.endpoints = []
            world.push()
        case _:
            world.backends = {}
            world.push()
            world.at(30.0)
    assert (account.calls, account.size, account.waiting_of(world.caller.flow)) == (0, 0, 0)
    assert len(world.outcomes) == 9 or way in ("remove endpoint", "remove backend")
