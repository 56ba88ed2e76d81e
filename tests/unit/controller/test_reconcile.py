"""Single decisions of reconciling that the properties do not spell out, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed import launches, routers, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ReplicaState
from controller_service.core.partition_owners import NO_OWNER, Incarnation
from controller_service.core.reconciling.backends import (
    FORGET_AFTER_S,
    LINGER_S,
    BackendOutcome,
    DrainReplica,
    ForgetReplica,
    reconcile_backend,
)
from controller_service.core.reconciling.endpoints import (
    BALANCE_EVERY_S,
    COMPLETE_WITHIN_S,
    FENCED_WITHIN_S,
    PATIENCE_S,
    SETTLED_AFTER_S,
    STARTED_WITHIN_S,
    EndpointOutcome,
    EndpointOutcomes,
    find_concerns,
)
from controller_service.core.reconciling.routes import build_routes
from controller_service.core.routing import AnnouncedTable
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from tests.support.tables import as_announced

E = Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0}))


def desired(*backends: Backend) -> Desired:
    return Desired().apply(ChangeSet(put_backends=backends, put_endpoints=(E,)))


def with_ready(observed: Observed, replica_id: str, *, now: float, backend: str = "v1") -> Observed:
    hello = Hello(replica_id=replica_id, incarnation="1" * 32, backend=backend)
    observed = transitions.attached(observed, hello, now=now).observed
    report = ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=1)
    return transitions.reported(observed, replica_id, "1" * 32, report, now=now).observed


def look(state: Desired, observed: Observed, now: float, *, launches: bool = True) -> BackendOutcome:
    owners = find_concerns(state, observed).owner_ids
    return reconcile_backend("v1", state, observed, now, owners=owners, launches=launches, time_of_day_s=now)


def assign(state: Desired, observed: Observed, now: float, *, launches: bool = True) -> EndpointOutcome:
    return EndpointOutcomes(state, observed, now, launches=launches).of(E)


def test_the_first_assignment_waits_for_the_others_but_not_for_ever() -> None:
    state = desired(Backend(name="v1", num_replicas=2))
    observed = with_ready(Observed(), "a", now=10.0)
    assert assign(state, observed, 11.0) == EndpointOutcome(retry_after_s=COMPLETE_WITHIN_S - 1.0)
    late = assign(state, observed, 10.0 + COMPLETE_WITHIN_S)
    assert late.ownership is not None
    assert late.ownership.owners == (Incarnation("a", "1" * 32),)
    complete = assign(state, with_ready(observed, "b", now=11.0), 11.0)
    assert complete.ownership is not None
    assert len(complete.ownership.owners) == 2


def test_the_first_assignment_waits_longer_for_a_replica_that_is_starting() -> None:
    state = desired(Backend(name="v1", num_replicas=2))
    observed = with_ready(Observed(), "a", now=10.0)
    starting = launches.launched(observed, "b", "v1", template="", pid=1, now=10.0).observed
    late = 10.0 + COMPLETE_WITHIN_S
    assert assign(state, starting, late) == EndpointOutcome(retry_after_s=STARTED_WITHIN_S - COMPLETE_WITHIN_S)
    assert assign(state, starting, 10.0 + STARTED_WITHIN_S).ownership is not None
    failed = launches.exited(starting, "b", "exited with status 1", failed=True, now=late).observed
    assert assign(state, failed, late).ownership is not None


def test_where_nobody_says_how_many_there_will_be_it_waits_until_no_more_come() -> None:
    state = desired(Backend(name="v1"))
    observed = with_ready(Observed(), "a", now=10.0)
    assert assign(state, observed, 10.0, launches=False).retry_after_s == SETTLED_AFTER_S
    observed = with_ready(observed, "b", now=10.5)
    assert assign(state, observed, 10.5, launches=False).retry_after_s == SETTLED_AFTER_S
    assigned = assign(state, observed, 10.5 + SETTLED_AFTER_S, launches=False).ownership
    assert assigned is not None
    assert len(assigned.owners) == 2


def test_orphans_do_not_wait_while_somebody_serves() -> None:
    state = desired(Backend(name="v1", num_replicas=2))
    observed = with_ready(with_ready(Observed(), "a", now=10.0), "b", now=10.0)
    first = assign(state, observed, 10.0).ownership
    assert first is not None
    state = state.apply(ChangeSet(put_ownership={"e": first}))
    observed = transitions.reported(
        observed, "a", "1" * 32, ObservedReport(state=ReplicaState.STOPPED), now=11.0
    ).observed
    moved = assign(state, observed, 11.0).ownership
    assert moved is not None
    assert moved.owners == (Incarnation("b", "1" * 32),)
    assert NO_OWNER not in moved.partition_owners


def test_nothing_is_assigned_before_those_that_served_earlier_have_given_up_what_they_had() -> None:
    state = desired(Backend(name="v1", num_replicas=1))
    observed = with_ready(Observed(), "a", now=10.0)
    elder = Hello(replica_id="elder", incarnation="2" * 32, backend="other", has_served=True)
    observed = transitions.attached(observed, elder, now=10.0).observed
    assert assign(state, observed, 99.0) == EndpointOutcome(retry_after_s=FENCED_WITHIN_S)
    owner = Incarnation("elder", "2" * 32)
    answered = routers.fenced(observed, owner, 1, {"e": frozenset({3}), "f": frozenset({4})}).observed
    assigned = assign(state, answered, 99.0).ownership
    assert assigned is not None
    assert assigned.leaving_by_owner() == {owner: {3: 0}}
    silent = transitions.fell_silent(observed, "elder", now=99.0).observed
    unasked = assign(state, silent, 99.0).ownership
    assert unasked is not None
    assert not unasked.leaving


def balancing(state: Desired, observed: Observed, now: float) -> tuple[Desired, Observed, int]:
    """Looks once, as the loop does; how many partitions were told to leave."""
    outcome = assign(state, observed, now)
    if outcome.ownership is None:
        return state, observed, 0
    known = state.ownership["e"].leaving if "e" in state.ownership else ()
    state = state.apply(ChangeSet(put_ownership={"e": outcome.ownership}))
    observed = routers.handovers_changed(
        observed, {"e": outcome.ownership}, balancing={"e"} if outcome.balancing else (), now=now
    ).observed
    return state, observed, len(set(outcome.ownership.leaving).difference(known))


def test_shares_are_evened_out_when_nothing_leaves_and_else_after_a_while() -> None:
    state = desired(Backend(name="v1", num_replicas=1))
    observed = with_ready(Observed(), "a", now=10.0)
    state, observed, told = balancing(state, observed, 10.0)
    observed = with_ready(observed, "b", now=20.0)
    state, observed, told = balancing(state, observed, 20.0)
    assert told == PARTITIONS // 2
    observed = with_ready(observed, "c", now=20.1)
    for now in (20.1, 20.1 + BALANCE_EVERY_S):
        assert assign(state, observed, now).ownership is None
    outcome = assign(state, observed, 21.0)
    assert outcome.retry_after_s is not None
    assert abs(outcome.retry_after_s - (PATIENCE_S - 1.0)) < 1e-6
    # What was told to leave goes to c as well: a gives up no more than it has too many.
    state, observed, told = balancing(state, observed, 20.0 + PATIENCE_S)
    assert told == PARTITIONS // 2 - PARTITIONS // 3 - 1
    assert assign(state, observed, 99.0).ownership is None


def test_when_all_owners_are_dead_partitions_have_none() -> None:
    state = desired(Backend(name="v1", num_replicas=1))
    observed = with_ready(Observed(), "a", now=10.0)
    first = assign(state, observed, 10.0).ownership
    assert first is not None
    state = state.apply(ChangeSet(put_ownership={"e": first}))
    observed = transitions.reported(
        observed, "a", "1" * 32, ObservedReport(state=ReplicaState.STOPPED), now=11.0
    ).observed
    orphaned = assign(state, observed, 11.0).ownership
    assert orphaned is not None
    assert set(orphaned.partition_owners) == {NO_OWNER}
    assert orphaned.epochs == first.epochs


def test_a_process_that_said_it_ended_may_linger_but_not_for_ever() -> None:
    backend = Backend(name="v1", handler="a:B", num_replicas=0)
    state = desired(backend)
    observed = launches.launched(Observed(), "a", "v1", template=template_of(backend), pid=1, now=0.0).observed
    hello = Hello(replica_id="a", incarnation="1" * 32, backend="v1")
    observed = transitions.attached(observed, hello, now=0.0).observed
    report = ObservedReport(state=ReplicaState.FAILED, error="no")
    observed = transitions.reported(observed, "a", "1" * 32, report, now=1.0).observed
    assert look(state, observed, 1.0) == BackendOutcome(retry_after_s=LINGER_S)
    (action,) = look(state, observed, 1.0 + LINGER_S).actions
    assert isinstance(action, DrainReplica)


def test_a_silent_stranger_is_forgotten_in_the_end_unless_a_table_has_named_it() -> None:
    state = desired(Backend(name="v1"))
    hello = Hello(replica_id="a", incarnation="1" * 32, backend="v1")
    starting = transitions.attached(Observed(), hello, now=0.0).observed
    observed = transitions.fell_silent(starting, "a", now=3.0).observed
    assert look(state, observed, 3.0, launches=False) == BackendOutcome(retry_after_s=FORGET_AFTER_S)
    later = look(state, observed, 3.0 + FORGET_AFTER_S, launches=False)
    assert later.actions == (ForgetReplica("a"),)
    named = transitions.fell_silent(with_ready(Observed(), "a", now=0.0), "a", now=3.0).observed
    assert look(state, named, 3.0 + FORGET_AFTER_S, launches=False) == BackendOutcome()


def test_templates_differ_exactly_where_a_process_would() -> None:
    backend = Backend(name="v1", handler="a:B", user_config={"k": [1, {"a": None}], "b": 2})
    same = Backend(name="v1", handler="a:B", user_config={"b": 2, "k": (1, {"a": None})}, max_ongoing=3)
    assert template_of(backend) == template_of(same)
    assert template_of(backend) != template_of(Backend(name="v1", handler="a:B", user_config={"b": 2}))
    assert template_of(backend) != template_of(Backend(name="v1", handler="a:C", user_config=backend.user_config))
    assert template_of(backend) != template_of(replace(backend, own_loop=True))


def test_ten_times_as_many_replicas_cost_about_ten_times_as_much() -> None:
    few, many = _costs(200), _costs(2_000)
    assert all(many[what] < 30 * few[what] for what in few), (few, many)


def _costs(replicas: int) -> dict[str, float]:
    """Of a backend with so many replicas: seconds of processor time, by what is done."""
    state = desired(Backend(name="v1", handler="a:B", num_replicas=replicas))
    observed = Observed()
    for number in range(replicas):
        observed = with_ready(observed, f"v1-{number}", now=1.0)
    assigned = assign(state, observed, 1.0).ownership
    assert assigned is not None
    assert len(assigned.owners) == replicas
    assert len(assigned.partition_owners) == PARTITIONS
    state = state.apply(ChangeSet(put_ownership={"e": assigned}))

    def build() -> object:
        table = AnnouncedTable(generation="g", revision=1, routes=build_routes(state, observed))
        return as_announced(table)

    return {
        "table": _seconds(build),
        "backend": _seconds(lambda: look(state, observed, 1.0)),
        "endpoint": _seconds(lambda: assign(state, observed, 1.0)),
        "first assignment": _seconds(lambda: assign(desired(*state.backends.values()), observed, 1.0)),
    }


def _seconds(work: Callable[[], object]) -> float:
    """The best of five."""
    times = []
    for _ in range(5):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return min(times)
