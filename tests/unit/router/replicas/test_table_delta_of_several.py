"""A delta with several of each: endpoints, backends, replicas, partitions, departures. None is left out."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.core.rosters import KnownDeparture, ReplicaKey, RosterVersion, TableRoster
from router_service.core.routing_table import (
    BackendDelta,
    BackendRoute,
    DeltaMismatch,
    EndpointDelta,
    EndpointRoute,
    PartitionOwners,
    ReplicaRoute,
    RoutingTable,
    TableDelta,
    TrafficDelta,
    follow_delta,
)
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.spec.model import Backend, Prospect

NAMES = ("r1", "r2", "r3", "r4", "r5")


def key(name: str) -> ReplicaKey:
    return name, "life"


def replica(name: str, **fields: Any) -> ReplicaRoute:
    return ReplicaRoute(key=key(name), address=f"{name}:1", max_ongoing=4, **fields)


def departure(name: str, revision: int) -> KnownDeparture:
    return KnownDeparture(key(name), RosterVersion("g", revision))


def table() -> RoutingTable:
    owners = PartitionOwners.of([(key("r1"), 1)] * PARTITIONS)
    return RoutingTable(
        generation="g",
        revision=7,
        endpoints={name: EndpointRoute(name=name, weights={"b": 1.0}, owners=owners) for name in "efgh"},
        backends={
            name: BackendRoute(settings=Backend(name=name), replicas=tuple(map(replica, NAMES))) for name in "bcde"
        },
        roster=TableRoster(RosterVersion("g", 3), tuple(departure(f"old{at}", at) for at in range(4))),
    )


def delta(**parts: Any) -> TableDelta:
    given: dict[str, Any] = {
        "generation": "g",
        "base_revision": 7,
        "revision": 8,
        "endpoints": [],
        "removed_endpoints": [],
        "backends": [],
        "removed_backends": [],
        "router_addresses": None,
        "router_token_addresses": (),
        "roster_revision": 3,
        "departed_since": 0,
        "forgotten_departures": 0,
        "departed": (),
    }
    return TableDelta(**{**given, **parts})


def of_backend(name: str, *, new: tuple[ReplicaRoute, ...] = (), removed: tuple[str, ...] = ()) -> BackendDelta:
    return BackendDelta(
        name=name,
        prospect=Prospect.UNKNOWN,
        settings=None,
        replicas=new,
        removed=[key(each) for each in removed],
    )


def names_of(followed: RoutingTable, backend: str) -> list[str]:
    return [each.key[0] for each in followed.backends[backend].replicas]


def test_several_endpoints_and_backends_go() -> None:
    followed = follow_delta(table(), delta(removed_endpoints=["e", "g", "h"], removed_backends=["c", "d"]))
    assert [*followed.endpoints] == ["f"]
    assert [*followed.backends] == ["b", "e"]


@pytest.mark.parametrize("removed", [("r1", "r2"), ("r5", "r3", "r1"), ("r1", "r2", "r3", "r4", "r5")])
def test_several_replicas_of_several_backends_go_and_come(removed: tuple[str, ...]) -> None:
    drains = replica("r2", draining=True)
    before = table()
    followed = follow_delta(
        before,
        delta(
            backends=[
                of_backend("b", removed=removed),
                of_backend("d", new=(replica("r9"), drains, replica("r0")), removed=("r4", "r5")),
            ]
        ),
    )
    assert names_of(followed, "b") == [each for each in NAMES if each not in removed]
    assert names_of(followed, "d") == ["r0", "r1", "r2", "r3", "r9"]
    assert [each.draining for each in followed.backends["d"].replicas] == [False, False, True, False, False]
    assert followed.backends["c"] is before.backends["c"]
    assert names_of(followed, "c") == names_of(followed, "e") == [*NAMES]


def test_several_partitions_of_several_endpoints_move() -> None:
    moved = {0: (key("r2"), 5), 17: (key("r3"), 6), 4095: (None, 7)}
    changes = [EndpointDelta(name=name, moved=moved) for name in ("e", "g")]
    followed = follow_delta(table(), delta(endpoints=changes))
    for name in "efgh":
        owners = followed.endpoints[name].owners
        for number in (0, 1, 17, 18, 4095):
            expected = moved.get(number, (key("r1"), 1)) if name in "eg" else (key("r1"), 1)
            assert owners[number] == expected, (name, number)


def test_several_changes_of_traffic() -> None:
    changes = [
        EndpointDelta(name="e", traffic=TrafficDelta(weights={"c": 1.0, "d": 2.0}, shadows={"b": 0.5, "e": 0.1})),
        EndpointDelta(name="h", traffic=TrafficDelta(weights=None, shadows={})),
    ]
    followed = follow_delta(table(), delta(endpoints=changes))
    assert {name: it.weights for name, it in followed.endpoints.items()} == {
        "e": {"c": 1.0, "d": 2.0},
        "f": {"b": 1.0},
        "g": {"b": 1.0},
        "h": None,
    }
    assert followed.endpoints["e"].shadows == {"b": 0.5, "e": 0.1}


def test_several_departures_are_forgotten_and_added() -> None:
    new = (departure("r8", 8), departure("r9", 8))
    followed = follow_delta(table(), delta(roster_revision=8, forgotten_departures=2, departed=new))
    assert [each.key[0] for each in followed.roster.departed] == ["old2", "old3", "r8", "r9"]
    assert followed.roster.version == RosterVersion("g", 8)


@pytest.mark.parametrize(
    "parts",
    [
        {"removed_endpoints": ["e", "x"]},
        {"removed_backends": ["b", "x"]},
        {"backends": [of_backend("b", removed=("r1", "x"))]},
        {"backends": [of_backend("b"), of_backend("x")]},
        {"endpoints": [EndpointDelta(name="e"), EndpointDelta(name="x")]},
        {"forgotten_departures": 5},
    ],
    ids=["endpoint", "backend", "replica", "changed backend", "changed endpoint", "departures"],
)
def test_the_second_that_is_not_there_is_seen_and_nothing_is_followed(parts: dict[str, Any]) -> None:
    before = table()
    with pytest.raises(DeltaMismatch):
        follow_delta(before, delta(**parts))
    assert before == table()
