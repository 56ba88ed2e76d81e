"""Moments of the router's scheduler that the property test meets too rarely."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router_service.core.callers import Caller, Window
from router_service.core.calls import CallOptions, Sent
from router_service.core.commands import CloseLink, Command, DeliverFailure, OpenLink, SendRun
from router_service.core.replicas import Capacity, Replica
from router_service.core.scheduler import Scheduler
from router_service.core.table import BackendRoute, EndpointRoute, ReplicaKey, ReplicaRoute, RoutingTable
from slotmesh.errors import Failure, Reason
from slotmesh.partitions import PARTITIONS, partition_of

OLD: ReplicaKey = ("old", "life")
NEW: ReplicaKey = ("new", "life")
ROOM = Capacity(max_ongoing=4)
KEYED = CallOptions(ordering_key="k", partition=partition_of("k"))


def table(revision: int, owner: ReplicaKey, backends: dict[str, list[ReplicaKey]]) -> RoutingTable:
    """The owner's epoch is the revision."""
    return RoutingTable(
        generation="g",
        revision=revision,
        endpoints={
            "e": EndpointRoute(name="e", weights={next(iter(backends)): 1.0}, owners=[(owner, revision)] * PARTITIONS)
        },
        backends={
            name: BackendRoute(
                name=name, replicas=[ReplicaRoute(key=key, address="", max_ongoing=4) for key in replicas]
            )
            for name, replicas in backends.items()
        },
    )


class World:
    """A scheduler with linked replicas."""

    def __init__(self, backends: dict[str, list[ReplicaKey]]) -> None:
        self.scheduler = Scheduler(lambda: 0.5)
        self.caller = Caller(Window(calls=1_000, bytes=1_000))
        self.replicas: dict[ReplicaKey, Replica] = {}
        for command in self.scheduler.apply(table(1, OLD, backends)):
            if isinstance(command, OpenLink):
                self.replicas[command.replica.key] = command.replica
        for replica in self.replicas.values():
            self.scheduler.link_up(replica, ROOM)

    def call(self, call_id: int) -> list[Sent]:
        ids = range(call_id, call_id + 1)
        return sent(self.scheduler.submit(self.caller, "e", [(KEYED, ids, [b"x"])], 0.0))

    def give_back(self, way: str, slices: list[Sent]) -> list[Command]:
        old = self.replicas[OLD]
        if way == "unsent":
            return self.scheduler.link_down(old, "cut", slices)
        ids = [each.first for each in slices]
        return self.scheduler.refused(old, ids, Failure(reason=Reason.DRAINING, message=""), ROOM)


def sent(commands: list[Command]) -> list[Sent]:
    return [command.sent for command in commands if isinstance(command, SendRun)]


def test_an_endpoint_that_comes_back_does_not_overtake_what_it_left_at_a_replica() -> None:
    backends = {"b": [OLD, NEW]}
    world = World(backends)
    (running,) = world.call(1)
    assert running.replica.key == OLD
    world.scheduler.apply(replace(table(2, OLD, backends), endpoints={}))
    world.scheduler.apply(table(3, NEW, backends))
    assert world.call(2) == [], "the first call still runs at the old owner"
    (later,) = sent(world.scheduler.completed(world.replicas[OLD], [([running.first], [b"done"], "")]))
    assert (later.replica.key, later.run.ids[0]) == (NEW, 2)


@pytest.mark.parametrize("way", ["unsent", "refused"])
def test_what_the_old_owner_gives_back_leaves_for_the_new_one_before_what_waits(way: str) -> None:
    backends = {"b": [OLD, NEW]}
    world = World(backends)
    early = world.call(1) + world.call(2)
    world.scheduler.apply(table(2, NEW, backends))
    assert not world.call(3), "the old owner has not answered"
    late = sent(world.give_back(way, early))
    assert [(list(each.run.ids), each.replica.key) for each in late] == [([1], NEW), ([2], NEW), ([3], NEW)]


@pytest.mark.parametrize("way", ["unsent", "refused"])
def test_the_order_outlives_the_backend_of_the_old_owner(way: str) -> None:
    world = World({"b": [OLD], "c": [NEW]})
    early = world.call(1) + world.call(2)
    world.scheduler.apply(table(2, NEW, {"c": [NEW]}))
    assert not world.call(3)
    late = sent(world.give_back(way, early))
    assert [list(each.run.ids) for each in late] == [[1], [2], [3]]


def test_a_replica_that_left_the_table_is_disconnected_with_its_last_answer() -> None:
    world = World({"b": [OLD, NEW]})
    (last,) = world.call(1)
    leaving = world.scheduler.apply(table(2, NEW, {"b": [NEW]}))
    assert not any(isinstance(command, CloseLink) for command in leaving)
    answered = world.scheduler.completed(world.replicas[OLD], [([last.first], [b"y"], "")])
    assert [command.replica.key for command in answered if isinstance(command, CloseLink)] == [OLD]


def test_a_longer_queue_time_holds_for_what_waits_already() -> None:
    world = World({"b": [OLD]})
    world.scheduler.link_down(world.replicas[OLD], "cut")
    assert not world.call(1)
    routes = table(2, OLD, {"b": [OLD]})
    longer = {"b": replace(routes.backends["b"], max_queue_time_s=60.0)}
    world.scheduler.apply(replace(routes, backends=longer))
    assert not world.scheduler.expire(31.0)
    assert world.scheduler.next_deadline() == 60.0
    (failed,) = world.scheduler.expire(60.0)
    assert isinstance(failed, DeliverFailure)
    assert failed.failure.reason is Reason.QUEUE_TIMEOUT
