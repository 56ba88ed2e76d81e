"""Which incarnations an operator may declare ended: each state of a replica, of an older incarnation, and of links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller_service.core.desired.state import Desired
from controller_service.core.observed.leases import Forgettable, find_forgettable
from controller_service.core.observed.replica_groups import restored
from controller_service.core.observed.state import Observed, ObservedReplica, ObservedRouter, ReplicaState
from controller_service.core.partition_owners import Incarnation
from controller_service.core.roster import IncarnationRoster, ListedIncarnation

SILENT = ObservedReplica(
    replica_id="a", backend="v1", incarnation="2", state=ReplicaState.READY, started_at=0.0, suspect_since=1.0
)
ELDER = replace(SILENT, incarnation="1")
ROUTER = ObservedRouter(router_id="r", address="127.0.0.1:1", started_at=0.0, reported_at=1.0)
LEASE_S = 10.0
NEW, OLD = Incarnation("a", "2"), Incarnation("a", "1")


def find(observed: Observed, incarnation: str = "", *departed: Incarnation, now: float = 90.0) -> Forgettable:
    return find_forgettable(observed, departed, "a", incarnation, now=now, lease_s=LEASE_S)


def test_what_is_silent_may_be_forgotten() -> None:
    assert find(Observed().with_replica(SILENT)) == Forgettable(True, (NEW,))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"suspect_since": None}, "reports"),
        ({"launched": True, "pid": 77}, "process 77"),
        ({"launched": True, "suspect_since": None}, "--dead-after"),
    ],
)
def test_what_is_connected_or_launched_may_not(change: dict[str, object], word: str) -> None:
    found = find(Observed().with_replica(replace(SILENT, **change)))  # type: ignore[arg-type]
    assert found.is_known
    assert not found.owners
    assert word in found.refusal


@pytest.mark.parametrize(
    ("linked", "may"),
    [
        (frozenset({NEW}), False),
        (frozenset({OLD}), True),
        (frozenset({Incarnation("b", "2")}), True),
        (frozenset(), True),
    ],
)
@pytest.mark.parametrize("others", [0, 1])
def test_a_link_of_any_router_speaks_against_it(linked: frozenset[Incarnation], may: bool, others: int) -> None:
    observed = Observed().with_replica(SILENT)
    for number in range(others):
        observed = observed.with_router(replace(ROUTER, router_id=f"other-{number}"))
    found = find(observed.with_router(replace(ROUTER, linked=linked)))
    assert (found.owners == (NEW,)) is may
    assert bool(found.refusal) is not may


def test_a_router_that_links_to_a_part_has_to_have_tried() -> None:
    part = replace(ROUTER, links_subset=True)
    found = find(Observed().with_replica(SILENT).with_router(part))
    assert not found.owners
    assert "has not tried to reach this one yet" in found.refusal
    tried = replace(part, unlinked=frozenset({NEW}))
    assert find(Observed().with_replica(SILENT).with_router(tried)).owners == (NEW,)


def test_of_two_incarnations_the_silent_one_is_forgotten_and_the_other_one_goes_on() -> None:
    observed = Observed().with_replica(replace(SILENT, suspect_since=None)).with_unresolved([ELDER])
    assert find(observed) == Forgettable(True, (OLD,))
    assert find(observed, "1") == Forgettable(True, (OLD,))
    assert find(observed, "2").refusal
    assert find(Observed().with_replica(SILENT).with_unresolved([ELDER])).owners == (OLD, NEW)


def test_what_has_ended_is_known_and_nothing_is_left_to_do() -> None:
    assert find(Observed().with_replica(replace(SILENT, gone=True))) == Forgettable(True)
    assert find(Observed().with_replica(replace(SILENT, retired=("1",))), "1") == Forgettable(True)
    assert find(Observed(), "", OLD) == Forgettable(True)
    assert find(Observed(), "2", OLD) == Forgettable(False)
    assert find(Observed()) == Forgettable(False)


@pytest.mark.parametrize("launches", [False, True])
@pytest.mark.parametrize(("now", "may"), [(100.0, False), (109.9, False), (110.0, True)])
def test_what_the_store_lists_is_not_silent_before_it_had_the_time_to_attach(
    launches: bool, now: float, may: bool
) -> None:
    member = ListedIncarnation(owner=NEW, backend="v1", address="h:1", max_ongoing=1)
    desired = Desired(roster=IncarnationRoster(members=(member,)))
    observed = restored(desired, generation="g", launches=launches, now=100.0)
    found = find(observed, now=now)
    assert found.is_known
    assert (found.owners == (NEW,)) is may
    assert ("may still attach" in found.refusal) is not may


def test_a_router_that_has_not_reported_may_have_a_link() -> None:
    observed = Observed().with_replica(SILENT)
    found = find(observed.with_router(ROUTER).with_router(replace(ROUTER, router_id="new", reported_at=None)))
    assert not found.owners
    assert "router new has not reported" in found.refusal
