"""A router that links to a part of the replicas: which links it opens, and when they close."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest

from router_service.core.calls import Release, Reserve
from router_service.core.commands import Step
from router_service.core.events import SlotOperationRequested, SlotRequested
from router_service.core.look_ups import LINK_WAIT_S
from router_service.core.routing import replica_links
from router_service.core.routing.replica_links import IDLE_S, LINGER_S, POLL_S, WIDENED_S, LinkedBackend
from slotmesh.calls.request_ids import KEEP_S, CallIdentity
from slotmesh.errors import Executed
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import caller, options

NAMES = "abcdefgh"
ROUTERS = ["me", "second", "third", "fourth"]
REQUEST: dict[str, Any] = {"ordering_key": "k", "request": CallIdentity("a", b"")}


def partial_world(**table: Any) -> World:
    """Eight replicas and four routers, of which each links to three to four: two routers link to each replica."""
    return World({"x": [*NAMES]}, subset_size=2, routers=ROUTERS, **table)


@pytest.fixture
def world() -> World:
    return partial_world()


def members(world: World) -> set[str]:
    return {each.replica_id for each in world.scheduler.topology.replicas.values() if each.is_member}


def linked(world: World) -> set[str]:
    return {each.replica_id for each in world.scheduler.topology.replicas.values() if each.has_link}


def stranger(world: World, at: int = 0) -> str:
    """A replica without a link."""
    return sorted(set(NAMES) - linked(world))[at]


def own(world: World, name: str, epoch: int) -> None:
    """The replica owns all partitions from now on."""
    world.owner = (name, epoch)
    world.push()


def test_unkeyed_calls_go_to_the_subset_only(world: World) -> None:
    assert members(world) == linked(world)
    assert 3 <= len(members(world)) < len(NAMES)
    world.submit(range(1, 100))
    assert {name for name in NAMES if world.got(name)} == members(world)


def test_as_many_replicas_as_the_size_are_all_linked() -> None:
    assert linked(World({"x": [*NAMES]}, subset_size=8, routers=ROUTERS)) == set(NAMES)


def test_a_mesh_that_shrinks_is_linked_as_a_whole(world: World) -> None:
    world.backends["x"] = ["a", "b"]
    world.push()
    assert members(world) == linked(world) == {"a", "b"}


def test_a_keyed_call_opens_the_link_to_its_owner_and_waits_for_it(world: World) -> None:
    name = stranger(world)
    own(world, name, 1)
    assert name not in linked(world)  # no call needs it yet
    world.submit([1], ordering_key="k")
    assert name in linked(world)
    world.link(name)
    assert world.got(name) == [1]
    world.submit(range(2, 100))
    assert world.got(name) == [1]
    assert name not in members(world)
    world.complete(name)
    assert world.outcomes == {1: OK}


def test_a_call_that_waits_follows_its_partition_to_a_replica_without_a_link(world: World) -> None:
    first, second = stranger(world), stranger(world, 1)
    own(world, first, 1)
    world.submit([1], ordering_key="k")
    own(world, second, 2)
    assert second in linked(world)
    world.link(second)
    assert world.got(second) == [1]


def test_a_link_without_use_closes(world: World) -> None:
    name = stranger(world)
    own(world, name, 1)
    world.submit([1], ordering_key="k")
    world.link(name)
    world.at(IDLE_S)
    world.complete(name)
    world.at(2 * IDLE_S - 1.0)
    assert name in linked(world)  # it was used in the first of the two periods
    world.at(2 * IDLE_S)
    assert name not in linked(world)
    assert world.closed == [name]
    world.submit([2], ordering_key="k")
    world.link(name)
    assert world.got(name) == [1, 2]


def test_a_link_stays_while_calls_wait_for_it(world: World) -> None:
    name = stranger(world)
    own(world, name, 1)
    world.submit([1], ordering_key="k", timeout_s=10 * IDLE_S)
    world.scheduler.topology.backends["x"].account.max_queue_time_s = 10 * IDLE_S
    world.at(IDLE_S)
    world.at(2 * IDLE_S)
    assert name in linked(world)


def test_there_is_room_for_few_links_beside_the_subset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_links, "MAX_EXTRA", 1)
    first, second = stranger(world), stranger(world, 1)
    own(world, first, 1)
    world.submit([1], ordering_key="k")
    world.link(first)
    own(world, second, 2)
    world.submit([2], ordering_key="k")
    assert second not in linked(world)  # the only other link has a call
    world.complete(first)
    world.at(POLL_S)
    assert linked(world) - members(world) == {second}
    world.link(second)
    assert world.got(second) == [2]


def test_a_link_that_cannot_be_established_does_not_take_the_room_of_one_that_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_links, "MAX_EXTRA", 1)
    first, second = stranger(world), stranger(world, 1)
    own(world, first, 1)
    world.submit([1], ordering_key="k")
    world.fail_link(first)
    world.at(POLL_S)
    assert first in linked(world)  # a call waits for it
    world.links_at_once = False
    own(world, second, 2)
    world.at(2 * POLL_S)
    assert linked(world) - members(world) == {second}
    world.link(second)
    assert world.got(second) == [1]


def test_replicas_whose_id_has_a_successor_are_watched_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every router watches the same ones: a replica counts as silent only if no router reaches it."""
    monkeypatch.setattr(replica_links, "MAX_WATCHED", 2)
    (backend,) = world.scheduler.topology.backends.values()
    watched = [each.replica_id for each in replica_links._watched([backend])]
    assert watched == []
    for name in "gfe":
        world.suspects.add(name)
        world.push()
    assert [each.replica_id for each in replica_links._watched([backend])] == ["e", "f"]
    old = next(each for each in backend.replicas.values() if each.replica_id == "g")
    backend.replicas["g", "next"] = copy(old)
    assert next(iter(replica_links._watched([backend]))).replica_id == "g"


@pytest.mark.parametrize("how", ["fails", "drains", "is_suspect"])
def test_a_subset_whose_replicas_cannot_be_used_is_widened(world: World, how: str) -> None:
    before = members(world)
    for name in before:
        if how == "fails":
            world.lose(name)
            world.fail_link(name)
        elif how == "drains":
            world.drain(name)
        else:
            world.suspects.add(name)
    world.push()
    added = members(world) - before
    assert len(added) == 3
    world.submit(range(1, 40))
    assert all(world.got(name) for name in added)
    if how == "fails":
        for name in before:
            world.link(name)
        world.at(WIDENED_S)
        assert members(world) == before


def test_the_subset_is_widened_if_its_replicas_turn_out_to_drain_when_they_are_linked() -> None:
    world = partial_world(links_at_once=False)
    before = members(world)
    for name in before:
        world.link(name, draining=True)
    assert len(members(world) - before) == 3


def test_a_replica_that_leaves_the_subset_takes_calls_until_others_are_linked(world: World) -> None:
    before = members(world)
    world.routers = [*ROUTERS, "fifth", "sixth", "seventh"]
    world.push()
    left = {name for name in before if name not in _share(world)}
    assert left
    assert before <= members(world)
    world.at(LINGER_S)
    assert members(world) == _share(world) | (before - left)
    world.at(LINGER_S + IDLE_S)
    assert linked(world) == members(world)


def _share(world: World) -> set[str]:
    (_, share), *_ = world.scheduler.topology.links._shares.values()
    return share


def test_an_operation_on_a_slot_opens_the_link_to_its_replica(world: World) -> None:
    name = stranger(world)
    who = caller()
    world.step(SlotOperationRequested(who, (name, "life"), Release(token="t")))
    assert name in linked(world)
    world.link(name)
    replica = world.replicas[name]
    assert world.flushes[-1:] == [name]
    assert len(world.scheduler.cut_ops(replica, 10**6)) == 1


def test_a_reservation_that_names_a_replica_links_to_it(world: World) -> None:
    name = stranger(world)
    world.step(SlotRequested(caller(), "e", options(timeout_s=5.0), Reserve(ttl_s=1.0, replica_id=name)))
    assert name in members(world)
    world.link(name)
    assert len(world.scheduler.cut_ops(world.replicas[name], 10**6)) == 1


def test_a_reservation_that_excludes_the_subset_links_to_another_replica(world: World) -> None:
    before = members(world)
    wanted = Reserve(ttl_s=1.0, excluded=frozenset(before))
    world.step(SlotRequested(caller(), "e", options(timeout_s=5.0), wanted))
    (name,) = members(world) - before
    world.link(name)
    assert len(world.scheduler.cut_ops(world.replicas[name], 10**6)) == 1


@pytest.fixture
def moved() -> tuple[World, str]:
    """A world whose partitions have moved from a replica without a link to one of the subset."""
    world = partial_world()
    name = stranger(world)
    own(world, name, 1)
    world.at(KEEP_S)
    own(world, min(members(world)), 2)
    assert name not in linked(world)
    return world, name


def test_a_call_is_looked_up_at_an_earlier_owner_without_a_link(moved: tuple[World, str]) -> None:
    world, name = moved
    world.submit([1], **REQUEST)
    world.submit([2], ordering_key="k")
    assert world.outcomes == {}
    world.link(name)
    assert world.got(name) == [1]
    world.complete(name)
    assert world.got(min(members(world))) == [2]


def test_an_earlier_owner_that_cannot_be_reached_may_have_executed_the_call(moved: tuple[World, str]) -> None:
    world, name = moved
    world.submit([1], **REQUEST)
    world.fail_link(name)
    assert world.outcomes == {}
    world.at(KEEP_S + LINK_WAIT_S)
    assert world.failures[1].executed is Executed.UNKNOWN
    assert not world.replicas[name].outbox
    world.submit([2], ordering_key="k")
    assert world.got(min(members(world))) == [2]


def test_a_look_up_waits_for_its_link_for_a_bounded_time(moved: tuple[World, str]) -> None:
    world, name = moved
    world.submit([1], **REQUEST)
    world.at(KEEP_S + LINK_WAIT_S / 2)
    assert world.outcomes == {}
    world.at(KEEP_S + LINK_WAIT_S)
    assert world.failures[1].executed is Executed.UNKNOWN
    world.link(name)
    assert world.got(name) == []


def test_a_session_that_moved_here_queries_replicas_without_a_link(world: World) -> None:
    name = stranger(world)
    client = world.connect(2, (1, 1), says_all=True)
    assert linked(world) == set(NAMES)
    for each in set(NAMES) - members(world):
        world.link(each)
    assert {each for each, _ in world.asked} == set(NAMES)
    world.resend([1], client)
    for each in sorted(NAMES):
        world.reconcile(each, client, running=[(1, 1)] if each == name else [])
    assert world.recovered(name) == [1]
    world.complete(name, 1)
    world.at(IDLE_S)
    world.at(2 * IDLE_S)
    assert linked(world) == members(world) | {name}  # the session may have further calls there
    world.resent_all(client)
    world.at(3 * IDLE_S)
    assert linked(world) == members(world)
    world.disconnect(client)
    assert not any(each.link_users for each in world.scheduler.topology.replicas.values())


def test_a_session_that_has_sent_all_of_its_calls_leaves_links_once_these_are_found(world: World) -> None:
    name = stranger(world)
    client = world.connect(2, (1, 1), says_all=True)
    for each in set(NAMES) - members(world):
        world.link(each)
    world.resend([1], client)
    world.resent_all(client)
    for each in sorted(NAMES):
        world.reconcile(each, client, running=[(1, 1)] if each == name else [])
    world.complete(name, 1)
    world.at(IDLE_S)
    world.at(2 * IDLE_S)
    assert linked(world) == members(world)
    world.disconnect(client)
    assert not any(each.link_users for each in world.scheduler.topology.replicas.values())


def test_no_answer_of_a_replica_that_could_not_be_linked_is_no_proof(world: World) -> None:
    client = world.connect(2, (1, 1))
    world.resend([1], client)
    for each in members(world):
        world.reconcile(each, client)
    assert world.outcomes == {}
    world.at(10.0)
    assert world.failures[1].executed is Executed.UNKNOWN
    world.disconnect(client)
    assert not any(each.link_users for each in world.scheduler.topology.replicas.values())


def test_suspects_are_linked_so_that_it_can_be_reported_whether_they_live(world: World) -> None:
    name = stranger(world)
    world.suspects.add(name)
    world.push()
    assert name in linked(world)
    assert name not in members(world)
    world.at(10 * IDLE_S)
    assert name in linked(world)


def test_a_router_that_reaches_no_replica_does_not_try_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_links, "MAX_UNREACHED", 2)
    names = [f"r{number}" for number in range(20)]
    world = World({"x": names}, subset_size=2, routers=ROUTERS, links_at_once=False)
    before = members(world)
    for name in [*names, *names]:
        if name in linked(world):
            world.fail_link(name)
    assert 3 <= len(members(world) - before) <= 4


def test_each_backend_is_looked_at_once_when_many_members_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes a millisecond if there are thousands of replicas, and a third of them leaves with a new router."""
    world = World({"x": [f"r{number}" for number in range(60)]}, subset_size=8, routers=ROUTERS[:2])
    world.routers = ROUTERS
    world.push()
    links, widened = world.scheduler.topology.links, list[str]()
    widen = links.widen

    def look(backend: LinkedBackend, step: Step) -> None:
        widened.append(backend.name)
        widen(backend, step)

    monkeypatch.setattr(links, "widen", look)
    before = members(world)
    world.at(LINGER_S)
    assert len(before - members(world)) > 10
    assert widened == ["x"]
