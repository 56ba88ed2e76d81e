"""The replicas of a stored roster, at the start of a controller that has its store."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed import transitions
from controller_service.core.observed.member_messages import Hello
from controller_service.core.observed.replica_groups import RETURN_WITHIN_S, missed_within_s, restored
from controller_service.core.observed.state import Observed, ReplicaState
from controller_service.core.partition_owners import Incarnation, OwnerCandidate, assign
from controller_service.core.reconciling.backends import DrainReplica, StartReplicas, reconcile_backend
from controller_service.core.reconciling.routes import all_members, build_routes
from controller_service.core.roster import IncarnationRoster, ListedIncarnation
from slotmesh.spec.model import Backend, Endpoint
from tests.support.examples import examples
from tests.support.state_changes import random_roster

V1 = Backend(name="v1", handler="app:One", num_replicas=2)
GENERATION = "a" * 32
NOW = 1_000.0


def member(name: str, incarnation: str = "1", *, backend: Backend | None = V1) -> ListedIncarnation:
    return ListedIncarnation(
        owner=Incarnation(name, incarnation * 32),
        backend="v1",
        address="h:1",
        max_ongoing=3,
        template="" if backend is None else template_of(backend),
    )


def stored(*members: ListedIncarnation) -> Desired:
    change = ChangeSet(put_backends=(V1,), put_roster=IncarnationRoster(revision=1, members=members))
    return Desired(epoch_floor=7).apply(change)


def start(desired: Desired, *, launches: bool = True) -> Observed:
    return restored(desired, generation=GENERATION, launches=launches, now=NOW)


def starts(desired: Desired, observed: Observed, now: float) -> int:
    outcome = reconcile_backend("v1", desired, observed, now, owners=(), launches=True, time_of_day_s=now)
    assert not any(isinstance(it, DrainReplica) for it in outcome.actions)
    return sum(it.count for it in outcome.actions if isinstance(it, StartReplicas))


@settings(max_examples=examples(50), deadline=None)
@given(seed=st.integers(0, 2**32), twins=st.booleans())
def test_the_first_roster_is_the_stored_one(seed: int, twins: bool) -> None:
    roster = random_roster(Random(seed), 1)
    if twins:  # a replica and its successor under one id, neither known to have ended
        elder = replace(roster.members[0], is_unresolved=True)
        twin = replace(elder, is_unresolved=False, owner=Incarnation(elder.owner.replica_id, "f" * 32))
        members = (elder, twin, *roster.members[1:])
        roster = replace(roster, members=tuple(sorted(members, key=lambda it: it.owner)))
    desired = Desired().apply(ChangeSet(put_backends=(V1,), put_roster=roster))
    routes = build_routes(desired, start(desired))
    assert sorted(all_members(routes), key=lambda it: it.owner) == list(roster.members)
    assert roster.listing(all_members(routes), generation=GENERATION, revision=9, now=0.0) is roster


def test_the_newer_of_two_under_one_id_may_attach_again() -> None:
    """The older one is not known to have ended, whichever comes first in the order of the roster."""
    for older, newer in (("1", "2"), ("2", "1")):
        desired = stored(replace(member("a", older), is_unresolved=True), member("a", newer))
        observed = start(desired)
        assert [it.incarnation for it in observed.replicas()] == [newer * 32]
        assert [it.incarnation for it in observed.unresolved] == [older * 32]
        hello = Hello(replica_id="a", incarnation=newer * 32, backend="v1")
        attached = transitions.attached(observed, hello, now=NOW, is_heard=True).observed
        assert [it.suspect_since for it in attached.replicas()] == [None]


def test_nobody_who_is_listed_is_dead_and_all_are_suspect() -> None:
    observed = start(stored(member("a"), member("b")))
    assert not observed.is_dead(Incarnation("a", "1" * 32))
    assert {it.shown_state for it in observed.replicas()} == {ReplicaState.SUSPECT}
    assert all(it.takes_calls and it.is_fenced for it in observed.replicas())


def test_what_was_launched_counts_until_it_has_had_the_time_to_come_back() -> None:
    desired = stored(member("a"), member("b"))
    observed = start(desired)
    assert missed_within_s(observed.replicas(), NOW) == RETURN_WITHIN_S
    assert starts(desired, observed, NOW + RETURN_WITHIN_S - 0.1) == 0
    assert starts(desired, observed, NOW + RETURN_WITHIN_S) == 2
    hello = Hello(replica_id="a", incarnation="1" * 32, backend="v1")
    observed = transitions.attached(observed, hello, now=NOW + 1.0).observed
    assert starts(desired, observed, NOW + RETURN_WITHIN_S) == 1


def test_what_is_proven_to_have_ended_is_replaced_at_once() -> None:
    desired = stored(member("a"), member("b"))
    observed = transitions.ended(start(desired), Incarnation("a", "1" * 32), "gone", now=NOW).observed
    assert starts(desired, observed, NOW) == 1


def test_what_somebody_else_started_does_not_count() -> None:
    desired = stored(member("a", backend=None), member("b", backend=None))
    assert starts(desired, start(desired), NOW) == 2
    launched = stored(member("a"), member("b"))
    elsewhere = start(launched, launches=False)
    outcome = reconcile_backend("v1", launched, elsewhere, NOW, owners=(), launches=False, time_of_day_s=NOW)
    assert outcome.actions == ()


def test_owners_that_an_earlier_generation_named_have_to_give_up_first() -> None:
    desired = stored(member("a"))
    owner = Incarnation("a", "1" * 32)
    owned = assign(None, [OwnerCandidate(owner=owner, share=1.0)], lambda _: False, epoch_floor=7)
    put = ChangeSet(put_endpoints=(Endpoint(name="e"),), put_ownership={"e": owned})
    assert start(desired.apply(put)).awaits_fence_of(owner) is False
    inherited = replace(put, put_ownership={"e": replace(owned, inherited=frozenset({3}))})
    observed = start(desired.apply(inherited))
    assert observed.awaits_fence_of(owner)
    (record,) = observed.replicas()
    assert record.must_fence_through == 7
