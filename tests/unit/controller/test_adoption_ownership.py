"""What a controller without state takes over from tables that routers bring: the owners of partitions."""

from __future__ import annotations

from dataclasses import replace

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed import routers, transitions
from controller_service.core.observed.member_messages import ObservedReport
from controller_service.core.observed.state import Observed, ObservedRouter, ReplicaState
from controller_service.core.observed.transitions import Transition
from controller_service.core.partition_owners import Incarnation
from controller_service.core.reconciling.backends import ForgetReplica, reconcile_backend
from controller_service.core.reconciling.endpoints import (
    FENCED_WITHIN_S,
    TABLE_WITHIN_S,
    EndpointOutcome,
    EndpointOutcomes,
)
from controller_service.core.roster import CoveredTables
from slotmesh.calls.key_hash import PARTITIONS
from tests.unit.controller.earlier_tables import (
    NOW,
    TOLD,
    E,
    attached,
    life,
    listed,
    owner_of,
    table,
    take,
    with_router,
)


def fenced(observed: Observed, owner: Incarnation, through: int, *busy: int) -> Observed:
    return routers.fenced(observed, owner, through, {"e": frozenset(busy)}).observed


def assign(state: Desired, observed: Observed, *, now: float = NOW, started_at: float = 0.0) -> EndpointOutcome:
    return EndpointOutcomes(state, observed, now, launches=False, started_at=started_at).of(E)


# -- who owns what ---------------------------------------------------------------------------------------------------


def test_an_owner_that_cannot_be_reached_keeps_what_it_has_and_its_epochs() -> None:
    owned = dict.fromkeys(range(10), (life("a"), 7))
    state, observed, _ = take(TOLD, Observed(), table([life("a")], owned))
    observed = attached(observed, life("b"))
    outcome = assign(state, observed)
    assert outcome.ownership is not None
    after = state.apply(ChangeSet(put_ownership={"e": outcome.ownership}))
    assert all(owner_of(after, number) == (life("a"), 7) for number in range(10))
    assert all(owner_of(after, number) == (life("b"), 51) for number in range(10, PARTITIONS))
    ended = transitions.ended(observed, life("a"), "its process has ended", now=NOW).observed
    moved = assign(after, ended).ownership
    assert moved is not None
    assert {*moved.owners} == {life("b")}
    assert {*moved.epochs} == {51}, "above the floor, whatever the older epoch was"
    assert not moved.inherited


def test_those_who_can_be_reached_share_what_the_others_do_not_hold() -> None:
    owned = dict.fromkeys(range(PARTITIONS // 2), (life("a"), 7))
    state, observed, _ = take(TOLD, Observed(), table([life("a"), life("idle")], owned))
    observed = attached(observed, life("b"))
    first = assign(state, observed).ownership
    assert first is not None
    assert not first.leaving, "nothing leaves for owners that are given nothing"
    state = state.apply(ChangeSet(put_ownership={"e": first}))
    assert assign(state, observed, now=NOW + 60.0) == EndpointOutcome()
    told = assign(state, attached(observed, life("c")), now=NOW + 60.0).ownership
    assert told is not None
    assert {owner: len(epochs) for owner, epochs in told.leaving_by_owner().items()} == {life("b"): PARTITIONS // 4}


def test_an_owner_that_attaches_is_fenced_and_then_given_the_same_anew() -> None:
    owned = dict.fromkeys(range(10), (life("a"), 7))
    state, observed, _ = take(TOLD, Observed(), table([life("a")], owned))
    observed = attached(observed, life("a"), generation="f")
    assert assign(state, observed) == EndpointOutcome(retry_after_s=FENCED_WITHIN_S)
    outcome = assign(state, fenced(observed, life("a"), 50, 3))
    assert outcome.ownership is not None
    assert outcome.ownership.owners == (life("a"),)
    assert {*outcome.ownership.epochs} == {51}
    assert not outcome.ownership.inherited


def test_what_runs_at_an_owner_that_may_keep_nothing_is_waited_for() -> None:
    owned = dict.fromkeys(range(10), (life("a"), 7))
    state, observed, _ = take(TOLD, Observed(), table([life("a")], owned))
    observed = fenced(attached(attached(observed, life("a"), generation="f"), life("b")), life("a"), 50, 3)
    observed = transitions.drain_requested(observed, "a", "why").observed
    outcome = assign(state, observed)
    assert outcome.ownership is not None
    assert outcome.ownership.leaving_by_owner() == {life("a"): {3: 7}}
    after = state.apply(ChangeSet(put_ownership={"e": outcome.ownership}))
    assert owner_of(after, 3) == (life("a"), 7)
    assert owner_of(after, 4) == (life("b"), 51)
    observed = routers.emptied(observed, life("a"), {"e": {3: 7}}).observed
    moved = assign(after, observed).ownership
    assert moved is not None
    assert owner_of(after.apply(ChangeSet(put_ownership={"e": moved})), 3) == (life("b"), 51)


def test_of_several_tables_the_newest_epoch_of_each_partition_counts() -> None:
    state, observed, _ = take(TOLD, Observed(), table([life("a")], {3: (life("a"), 7), 4: (life("a"), 9)}))
    both = table([life("a"), life("b")], {3: (life("b"), 8), 4: (life("b"), 8)}, revision=10)
    state, observed, _ = take(state, observed, both)
    assert owner_of(state, 3) == (life("b"), 8)
    assert owner_of(state, 4) == (life("a"), 9)


def test_what_any_of_several_tables_named_may_be_named_anew_by_the_next() -> None:
    """Each of three partitions gets a newer owner from another table. What was named first is not given away yet."""
    state, observed, _ = take(TOLD, Observed(), table([life("a")], dict.fromkeys((3, 4, 5, 6), (life("a"), 7))))
    owners = [life("a")]
    for at, (number, name) in enumerate([(4, "b"), (3, "c"), (5, "d")], 1):
        owners.append(life(name))
        state, observed, _ = take(state, observed, table(owners, {number: (life(name), 7 + at)}, revision=9 + at))
        assert state.ownership["e"].inherited == {3, 4, 5, 6}
    assert [owner_of(state, number) for number in (3, 4, 5, 6)] == [
        (life("c"), 9),
        (life("b"), 8),
        (life("d"), 10),
        (life("a"), 7),
    ]


def test_what_was_given_away_meanwhile_stays_there() -> None:
    observed = attached(Observed(), life("b"))
    given = assign(TOLD, observed).ownership
    assert given is not None
    state = TOLD.apply(ChangeSet(put_ownership={"e": given}))
    state, observed, adoption = take(state, observed, table([life("a")], {3: (life("a"), 99)}))
    assert owner_of(state, 3) == (life("b"), 51)
    assert state.epoch_floor == 99
    assert adoption.taken == ("a",)


def test_an_owner_that_got_newer_epochs_elsewhere_is_fenced_again_and_given_newer_ones() -> None:
    observed = attached(Observed(), life("a"), generation="f", newest_epoch=9)
    observed = fenced(observed, life("a"), 50)
    given = assign(TOLD, observed, now=NOW + TABLE_WITHIN_S).ownership
    assert given is not None
    state = TOLD.apply(ChangeSet(put_ownership={"e": given}))
    state, observed, _ = take(state, observed, table([life("a")], {3: (life("a"), 700)}))
    assert observed.awaits_fence()
    assert state.epoch_floor == 700
    renewed = assign(state, fenced(observed, life("a"), 700)).ownership
    assert renewed is not None
    assert {*renewed.epochs} == {701}


def test_epochs_that_a_late_replica_brings_are_overtaken() -> None:
    observed = attached(Observed(), life("b"))
    given = assign(TOLD, observed).ownership
    assert given is not None
    state = TOLD.apply(ChangeSet(put_ownership={"e": given}, epoch_floor=900))
    observed = fenced(attached(observed, life("a"), generation="f", newest_epoch=900), life("a"), 900)
    observed = transitions.drain_requested(observed, "b", "why").observed
    told = assign(state, observed).ownership
    assert told is not None
    observed = routers.emptied(observed, life("b"), {"e": told.leaving_by_owner()[life("b")]}).observed
    moved = assign(state.apply(ChangeSet(put_ownership={"e": told})), observed).ownership
    assert moved is not None
    assert (moved.owners, {*moved.epochs}) == ((life("a"),), {901})


# -- waiting for a table ---------------------------------------------------------------------------------------------


def test_nothing_is_given_away_while_a_router_may_yet_bring_the_table_of_an_earlier_generation() -> None:
    observed = fenced(attached(with_router(Observed()), life("a"), generation="f"), life("a"), 50)
    held = assign(TOLD, observed, now=NOW + 2.0, started_at=NOW)
    assert held == EndpointOutcome(retry_after_s=TABLE_WITHIN_S - 2.0)
    assert assign(TOLD, observed, now=NOW + TABLE_WITHIN_S, started_at=NOW).ownership is not None
    covered = TOLD.apply(
        ChangeSet(put_roster=replace(TOLD.roster, covers=(CoveredTables(generation="f", revision=1),)))
    )
    assert assign(covered, observed, now=NOW + 2.0, started_at=NOW).ownership is not None


def test_the_first_table_need_not_be_the_newest_so_all_routers_that_it_names_are_waited_for() -> None:
    observed = attached(with_router(Observed()), life("a"))
    brought = replace(table([]), router_addresses=frozenset({"h:2", "h:3"}))
    state, observed, _ = take(TOLD, observed.with_earlier_table("r", brought).without_earlier_tables(["r"]), brought)
    assert assign(state, observed, now=NOW + 2.0, started_at=NOW).retry_after_s == TABLE_WITHIN_S - 2.0
    other = observed.with_router(ObservedRouter(router_id="q", address="h:3", started_at=0.0))
    assert assign(state, other, now=NOW + 2.0, started_at=NOW).ownership is not None


def test_a_cold_start_waits_for_a_router_and_no_longer() -> None:
    observed = attached(Observed(), life("a"))
    assert assign(TOLD, observed, started_at=NOW).retry_after_s == TABLE_WITHIN_S
    assert assign(TOLD, with_router(observed, generation=""), started_at=NOW).ownership is not None


def test_a_table_that_was_not_read_yet_holds_up_everything() -> None:
    observed = attached(with_router(Observed()), life("a"))
    pending = observed.with_earlier_table("r", table([life("b")]))
    assert assign(TOLD, pending) == EndpointOutcome(retry_after_s=FENCED_WITHIN_S)
    left: Transition = routers.left(pending, "r", "why")
    assert not left.observed.earlier_tables


def test_a_replica_that_ended_before_a_table_named_it_has_departed() -> None:
    stopped = ObservedReport(state=ReplicaState.STOPPED)
    observed = attached(Observed(), life("r1"), generation="f")
    observed = attached(observed, life("r5"), generation="f")
    observed = transitions.reported(observed, "r5", "1", stopped, now=NOW).observed
    state, observed, _ = take(TOLD, observed, table([life("r1"), life("r5")]))
    assert listed(state, observed) == {life("r1")}
    assert [it.owner for it in state.roster.departed] == [life("r5")]
    assert state.roster.covered_revision("f") == 9


def test_the_record_of_a_replica_that_has_ended_is_kept_until_a_table_may_have_named_it() -> None:
    observed = attached(Observed(), life("r5"), generation="f")
    observed = transitions.reported(observed, "r5", "1", ObservedReport(state=ReplicaState.STOPPED), now=NOW).observed
    outcome = reconcile_backend("v1", TOLD, observed, NOW, owners=(), launches=False, time_of_day_s=NOW)
    assert not outcome.actions
    state, observed, _ = take(TOLD, observed, table([life("r5")]))
    outcome = reconcile_backend("v1", state, observed, NOW, owners=(), launches=False, time_of_day_s=NOW)
    assert outcome.actions == (ForgetReplica("r5"),)
