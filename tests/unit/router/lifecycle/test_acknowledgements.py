"""Replicas that join, and clients of sessions that have not acknowledged a roster with them."""

from __future__ import annotations

from router_service.core.features.session_connections import PATIENCE_S
from router_service.core.lifecycle.intake import HOLD_S
from slotmesh.errors import Executed, Reason
from tests.unit.router.world import OK, World

OTHER = "0ddba11" + "0" * 25


def join(world: World, *names: str) -> None:
    """These replicas are in the next table, too."""
    world.backends["b"] += names
    world.push()


def test_calls_of_a_session_wait_until_its_client_has_acknowledged_the_roster() -> None:
    world = World({"b": ["r1"]}, owner=("r1", 1))
    client = world.connect(acknowledges=False)
    world.submit([1], by=client)
    world.submit([2], by=client, ordering_key="k")
    world.submit([3])
    assert world.got("r1") == [3]
    world.acknowledge(client)
    assert world.got("r1") == [3, 1, 2]


def test_who_never_acknowledges_hears_so() -> None:
    world = World({"b": ["r1"]})
    client = world.connect(acknowledges=False)
    world.submit([1], by=client)
    world.submit([2], by=client, timeout_s=1.0)
    world.at(1.0)
    assert world.outcomes == {2: Reason.DEADLINE_IN_QUEUE}
    world.at(HOLD_S)
    assert world.outcomes[1] == Reason.STALE_TABLE
    assert world.failures[1].executed is Executed.NO
    assert not client.runs
    world.acknowledge(client)
    assert not world.got("r1")


def test_a_replica_that_joins_gets_nothing_before_all_clients_know_it() -> None:
    world = World({"b": ["r1"]}, slots=1)
    one, other = world.connect(), world.connect(session_id=OTHER)
    world.submit([1], by=one)
    join(world, "r2")
    assert world.named == {one: world.roster, other: world.roster}
    world.submit([2], by=one)
    world.submit([3])
    assert world.queued == {"b": 2}
    world.acknowledge(one)
    assert not world.got("r2")
    world.acknowledge(other)
    assert len(world.got("r2")) == 1
    assert world.queued == {"b": 1}


def test_a_client_that_leaves_holds_nobody_up() -> None:
    world = World({"b": ["r1"]}, slots=1)
    client = world.connect()
    world.submit([1], by=client)
    join(world, "r2")
    world.submit([2])
    world.disconnect(client)
    assert world.got("r2") == [2]


def test_a_slow_client_holds_up_its_own_calls_alone() -> None:
    world = World({"b": ["r1"]}, slots=1, owner=("r1", 1))
    slow, quick = world.connect(), world.connect(session_id=OTHER)
    world.submit([1])
    world.submit([2, 3], by=slow)
    world.submit([4], by=slow, ordering_key="k")
    world.submit([5], by=quick)
    assert world.at_replica("r1") == [1, 4]
    join(world, "r2")
    world.acknowledge(quick)
    assert world.scheduler.next_deadline() == PATIENCE_S
    assert not world.got("r2")
    world.at(PATIENCE_S)
    assert world.got("r2") == [5]
    assert not world.queued, "what waits of the slow one is in no queue"
    world.complete("r1")
    world.complete("r2")
    assert world.got("r1") + world.got("r2") == [1, 4, 5]
    world.submit([6], by=slow)
    world.acknowledge(slow)
    world.complete("r1")
    world.complete("r2")
    world.complete("r1")
    world.complete("r2")
    assert world.reasons(range(1, 7)) == {OK}


def test_a_new_owner_gets_its_keys_when_all_clients_know_it() -> None:
    world = World({"b": ["r1"]}, owner=("r1", 1))
    client = world.connect()
    world.backends["b"].append("r2")
    world.owner = ("r2", 2)
    world.push()
    world.submit([1], by=client, ordering_key="k")
    world.submit([2], ordering_key="k")
    assert not world.got("r2")
    world.acknowledge(client)
    assert world.got("r2") == [1, 2]


def test_keys_of_a_suspended_client_stay_in_order() -> None:
    world = World({"b": ["r1"]}, owner=("r1", 1))
    client = world.connect()
    world.backends["b"].append("r2")
    world.owner = ("r2", 2)
    world.push()
    world.submit([1], by=client, ordering_key="k")
    world.at(PATIENCE_S)
    world.submit([2], by=client, ordering_key="k")
    world.submit([3], ordering_key="k")
    assert world.got("r2") == [3]
    world.acknowledge(client)
    assert world.got("r2") == [3, 1, 2]


def test_what_comes_back_of_a_suspended_client_waits_too() -> None:
    world = World({"b": ["r1"]}, slots=1)
    client = world.connect()
    world.submit([1], by=client)
    join(world, "r2")
    world.at(PATIENCE_S)
    world.refuse("r1", 1, reason=Reason.DRAINING, draining=True)
    assert not world.got("r2")
    world.acknowledge(client)
    assert world.got("r2") == [1]


def test_an_older_roster_than_the_newest_is_enough_for_replicas_that_have_joined() -> None:
    world = World({"b": ["r1"]})
    first = world.roster
    client = world.connect(acknowledges=False)
    idle = world.connect(session_id=OTHER)
    join(world, "r2")
    world.acknowledge(client, first)
    world.submit([1, 2, 3, 4], by=client)
    assert len(world.got("r1")) == 4
    assert not world.got("r2")
    world.acknowledge(idle)
    world.submit([5])
    assert not world.got("r2"), "the client that was let in knows it no more than before"
    world.acknowledge(client)
    assert world.got("r2") == [5]


def test_departures_are_named_and_wait_for_nobody() -> None:
    world = World({"b": ["r1", "r2"]}, slots=1)
    client = world.connect()
    world.backends["b"] = ["r1"]
    world.push()
    assert world.named == {client: world.roster}
    world.submit([1], by=client)
    assert world.got("r1") == [1]
    assert world.scheduler.next_deadline() is None


def test_tables_that_change_nothing_of_the_roster_name_nothing() -> None:
    world = World({"b": ["r1"]})
    world.connect()
    world.push()
    assert not world.named


def test_what_comes_back_to_a_suspended_client_goes_before_what_had_not_left() -> None:
    world = World({"b": ["r1"]}, owner=("r1", 1))
    client = world.connect()
    world.link("r1", keyed_window=2)
    world.submit([1, 2, 3, 4], by=client, ordering_key="k")
    assert world.at_replica("r1") == [1, 2]
    world.backends["b"].append("r2")
    world.owner = ("r2", 2)
    world.push()
    world.at(PATIENCE_S)
    world.refuse("r1", 1, 2, reason=Reason.STALE_TABLE)
    world.acknowledge(client)
    assert world.got("r2") == [1, 2, 3, 4]


def test_a_client_that_keeps_up_is_not_suspended_however_often_rosters_change() -> None:
    world = World({"b": ["r1"]}, slots=100)
    client = world.connect()
    rosters = []
    for number in range(2, 40):
        world.at(number * PATIENCE_S / 5)
        join(world, f"r{number}")
        rosters.append(world.roster)
        if len(rosters) > 2:
            world.acknowledge(client, rosters[-2])
        assert client.session is not None
        assert not client.session.is_suspended
    assert sum(not replica.is_joining for replica in world.replicas.values()) > 30


def test_calls_that_end_while_they_are_held_are_not_kept() -> None:
    world = World({"b": ["r1"]})
    client = world.connect(acknowledges=False)
    for call_id in range(1, 5_000):
        world.submit([call_id], by=client)
        if call_id > 1:
            world.cancel((call_id, call_id), by=client)
    assert client.session is not None
    assert len(world.scheduler._parts.intake.suspended) < 2_100
    world.at(HOLD_S - 1.0)
    world.submit([5_000], by=client)
    world.at(HOLD_S)
    assert world.outcomes[1] == Reason.STALE_TABLE
    assert 5_000 not in world.outcomes, "each has its time"
    world.acknowledge(client)
    assert world.got("r1") == [5_000]


def test_a_roster_that_says_nothing_new_of_itself_lets_replicas_join_all_the_same() -> None:
    world = World({"b": ["r1"]})
    client = world.connect()
    world.backends["b"].append("r2")
    world.listed.add("r2")  # as a controller that does not number its rosters
    world.push()
    world.acknowledge(client)
    world.submit([1, 2, 3, 4, 5, 6, 7, 8], by=client)
    assert world.got("r2")


def test_what_is_still_read_of_a_connection_that_is_gone_goes_nowhere() -> None:
    world = World({"b": ["r1"]})
    client = world.connect()
    world.disconnect(client)
    world.submit([1], by=client)
    assert not world.got("r1")
