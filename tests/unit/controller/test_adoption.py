"""What a controller without state takes over from tables that routers bring: the replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller_service.core.desired.state import ChangeSet
from controller_service.core.observed import launches, transitions
from controller_service.core.observed.adoption import adopt, has_rivals, replaced
from controller_service.core.observed.member_messages import Hello
from controller_service.core.observed.state import Observed, ObservedRouter, ReplicaState
from controller_service.core.partition_owners import Incarnation
from controller_service.core.roster import CoveredTables, DepartedIncarnation, IncarnationRoster, ListedIncarnation
from tests.unit.controller.earlier_tables import NOW, TOLD, attached, life, listed, owner_of, table, take, with_router


def with_links(observed: Observed, *linked: Incarnation, **facts: Any) -> Observed:
    """A router that has reported these links long ago."""
    facts = {"router_id": "r", "generation": "g", "started_at": 0.0, **facts}
    return observed.with_router(ObservedRouter(address="h:2", linked=frozenset(linked), **facts))


# -- the roster ------------------------------------------------------------------------------------------------------


def test_replicas_that_are_not_known_are_listed_and_suspect() -> None:
    state, observed, adoption = take(TOLD, Observed(), table([life("a"), life("b")]))
    assert adoption.taken == ("a", "b")
    assert listed(state, observed) == {life("a"), life("b")}
    replica = observed.replica("a")
    assert replica is not None
    assert (replica.shown_state, replica.takes_calls, replica.address) == (ReplicaState.SUSPECT, True, "h:9")
    assert state.roster.covers == (CoveredTables(generation="f", revision=9),)


@pytest.mark.parametrize("comes_first", ["table", "attachment"])
def test_a_process_that_was_found_running_is_the_replica_that_a_table_names(comes_first: str) -> None:
    transition = launches.launched(Observed(), "a", "v1", template="t", pid=7, process="p", now=NOW, was_found=True)
    found = transition.observed
    member = ListedIncarnation(owner=life("a"), backend="v1", address="h:9", max_ongoing=3, process="p")
    brought = table([], {3: (life("a"), 7)})
    brought = replace(brought, roster=replace(brought.roster, members=(member,)))
    hello = Hello(
        replica_id="a", incarnation="1", backend="v1", process="p", has_served=True, generation="f", newest_epoch=7
    )
    if comes_first == "table":
        state, observed, _ = take(TOLD, found, brought)
        replica = observed.replica("a")
        assert replica is not None
        assert (replica.owner, replica.takes_calls, replica.launched) == (life("a"), True, True)
        observed = transitions.attached(observed, hello, now=NOW).observed
    else:
        state, observed, _ = take(TOLD, transitions.attached(found, hello, now=NOW).observed, brought)
    replica = observed.replica("a")
    assert replica is not None
    assert (replica.launched, replica.pid, replica.must_fence_through) == (True, 7, 7)
    assert not observed.unresolved
    assert owner_of(state, 3) == (life("a"), 7)


def test_a_table_that_is_covered_changes_nothing() -> None:
    brought = table([life("a")], {3: (life("a"), 7)})
    state, observed, _ = take(TOLD, Observed(), brought)
    again = adopt(state, observed, brought, generation="g", now=NOW, time_of_day=0.0)
    assert again.observed is observed
    assert again.change == ChangeSet(epoch_floor=7)
    older = adopt(state, observed, table([life("x")], revision=8), generation="g", now=NOW, time_of_day=0.0)
    assert older.observed is observed, "x has departed since"


def test_a_newer_table_ends_what_it_does_not_name() -> None:
    state, observed, _ = take(TOLD, Observed(), table([life("a"), life("b")]))
    state, observed, _ = take(state, observed, table([life("b")], revision=10))
    assert observed.is_dead(life("a"))
    assert listed(state, observed) == {life("b")}
    covering = table([], generation="h", revision=1, covers=(CoveredTables(generation="f", revision=10),))
    state, observed, _ = take(state, observed, covering)
    assert observed.is_dead(life("b"))


def test_a_table_of_another_generation_that_covers_nothing_ends_nobody_unless_it_says_so() -> None:
    state, observed, _ = take(TOLD, Observed(), table([life("a"), life("b")]))
    state, observed, _ = take(state, observed, table([life("c")], generation="h", departed=[life("b")]))
    assert listed(state, observed) == {life("a"), life("c")}
    assert observed.is_dead(life("b"))


def test_who_is_attached_knows_better_than_a_table() -> None:
    observed = attached(Observed(), life("a"), generation="f")
    state, observed, _ = take(TOLD, observed, table([], departed=[life("a")]))
    assert not observed.is_dead(life("a"))
    assert not state.roster.departed


def test_what_has_departed_here_is_not_taken_over_again() -> None:
    roster = IncarnationRoster(
        departed=(DepartedIncarnation(owner=life("a"), generation="g", revision=1, left_at=0.0),)
    )
    state = TOLD.apply(ChangeSet(put_roster=roster))
    state, observed, adoption = take(state, Observed(), table([life("a")]))
    assert not adoption.taken
    assert not listed(state, observed)


def test_one_that_was_taken_over_goes_on_as_itself_when_it_attaches() -> None:
    state, observed, _ = take(TOLD, Observed(), table([life("a")], {3: (life("a"), 70)}))
    observed = attached(observed, life("a"), generation="f", newest_epoch=9)
    replica = observed.replica("a")
    assert replica is not None
    assert (replica.shown_state, replica.named_by, replica.must_fence_through) == (ReplicaState.READY, None, 70)
    state, observed, _ = take(state, observed, table([], revision=10))
    assert not observed.is_dead(life("a"))


# -- the same id twice -----------------------------------------------------------------------------------------------


def test_a_successor_that_is_attached_proves_the_end_of_one_that_nobody_hears_of() -> None:
    observed = with_router(attached(Observed(), life("a", "2")))
    brought = table([life("a", "1")], {3: (life("a", "1"), 7)})
    assert has_rivals(observed, brought)
    state, observed, _ = take(TOLD, observed, brought)
    assert observed.is_dead(life("a", "1"))
    assert listed(state, observed) == {life("a", "2")}
    assert [it.owner for it in state.roster.departed] == [life("a", "1")]
    assert owner_of(state, 3) == (None, 7)


def test_one_that_a_router_has_a_link_to_lives_on_beside_its_namesake() -> None:
    observed = with_router(attached(Observed(), life("a", "2")), "a")
    state, observed, _ = take(TOLD, observed, table([life("a", "1")], {3: (life("a", "1"), 7)}))
    assert not observed.is_dead(life("a", "1"))
    assert listed(state, observed) == {life("a", "1"), life("a", "2")}
    assert owner_of(state, 3) == (life("a", "1"), 7)
    observed = transitions.ended(observed, life("a", "1"), "told", now=NOW).observed
    assert observed.is_dead(life("a", "1"))
    assert not observed.is_dead(life("a", "2"))
    assert listed(state, observed) == {life("a", "2")}


def test_it_has_ended_once_nobody_has_had_a_link_to_it_for_a_lease() -> None:
    observed = with_router(attached(Observed(), life("a", "2")), "a")
    _, observed, _ = take(TOLD, observed, table([life("a", "1")]))
    silent = with_links(observed, life("a", "2"))
    assert replaced(silent, lease_s=3.0, now=NOW + 2.9) == []
    assert replaced(silent, lease_s=3.0, now=NOW + 3.0) == [life("a", "1")]
    ended = transitions.ended(silent, life("a", "1"), "replaced", now=NOW + 3.0).observed
    assert replaced(ended, lease_s=3.0, now=NOW + 9.0) == []


def test_it_may_live_for_as_long_as_a_router_has_a_link_to_it() -> None:
    observed = with_router(attached(Observed(), life("a", "2")), "a")
    _, observed, _ = take(TOLD, observed, table([life("a", "1")]))
    assert replaced(with_links(observed, life("a", "1")), lease_s=3.0, now=NOW + 99.0) == []


@pytest.mark.parametrize("router", [{"generation": ""}, {"started_at": NOW + 97.0}], ids=["no report", "new"])
def test_a_router_gets_the_time_to_find_its_links(router: dict[str, Any]) -> None:
    observed = with_router(attached(Observed(), life("a", "2")), "a")
    _, observed, _ = take(TOLD, observed, table([life("a", "1")]))
    late = with_links(observed, router_id="late", **router)
    observed = with_links(late, life("a", "2"))
    assert replaced(observed, lease_s=3.0, now=NOW + 99.0) == []
    assert replaced(observed.without_router("late"), lease_s=3.0, now=NOW + 99.0) == [life("a", "1")]


def test_a_router_that_links_to_a_part_proves_nothing_before_it_has_tried() -> None:
    observed = with_links(attached(Observed(), life("a", "2")), generation="f", links_subset=True)
    _, untried, _ = take(TOLD, observed, table([life("a", "1")]))
    assert not untried.is_dead(life("a", "1"))
    tried = with_links(observed, generation="f", links_subset=True, unlinked=frozenset({life("a", "1")}))
    _, known, _ = take(TOLD, tried, table([life("a", "1")]))
    assert known.is_dead(life("a", "1"))
    assert replaced(with_links(untried, links_subset=True), lease_s=3.0, now=NOW + 99.0) == []
    tried = with_links(untried, links_subset=True, unlinked=frozenset({life("a", "1")}))
    assert replaced(tried, lease_s=3.0, now=NOW + 99.0) == [life("a", "1")]


def test_a_link_under_this_generation_is_to_the_replica_that_is_attached() -> None:
    observed = with_router(attached(Observed(), life("a", "2")), "a", generation="g")
    _, observed, _ = take(TOLD, observed, table([life("a", "1")]))
    assert observed.is_dead(life("a", "1"))


def test_of_two_that_are_only_named_neither_is_proven_to_have_ended() -> None:
    state, observed, _ = take(TOLD, Observed(), table([life("a", "1")]))
    assert not has_rivals(observed, table([life("a", "2")], generation="h"))
    state, observed, _ = take(state, observed, table([life("a", "2")], generation="h"))
    assert listed(state, observed) == {life("a", "1"), life("a", "2")}
    # Whoever starts a third one vouches for the end of both, once nobody hears of them.
    observed = attached(observed, life("a", "3"))
    assert listed(state, observed) == {life("a", "3")}
    assert observed.is_dead(life("a", "1"))
    assert observed.is_dead(life("a", "2"))


def test_an_elder_comes_back_only_after_its_namesake_has_ended() -> None:
    observed = with_router(attached(Observed(), life("a", "2")), "a")
    state, observed, _ = take(TOLD, observed, table([life("a", "1")]))
    for is_heard in (True, False):
        try:
            attached(observed, life("a", "1"), generation="f", is_heard=is_heard)
        except transitions.NamesakeLives:
            continue
        raise AssertionError("it is not younger than its namesake")
    observed = transitions.ended(observed, life("a", "2"), "told", now=NOW).observed
    observed = attached(observed, life("a", "1"), generation="f")
    assert listed(state, observed) == {life("a", "1")}
    assert observed.is_dead(life("a", "2"))
