"""Replicas whose health checks fail, and replicas that take a new configuration while they live."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from controller_service.core.desired.handler_code import fixed_of, template_of
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.event_log import EventKind
from controller_service.core.observed import launches, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ReplicaState
from controller_service.core.observed.transitions import FIRST_INTERVAL_S, QUICK_DEATH_S
from controller_service.core.reconciling.backends import (
    UNHEALTHY,
    BackendOutcome,
    DrainReplica,
    ForgetReplica,
    StartReplicas,
    reconcile_backend,
)
from controller_service.core.reconciling.rollouts import NO_STEP
from slotmesh.spec.model import Backend

V1 = Backend(name="v1", handler="app:One", num_replicas=2, user_config={"k": 1}, max_surge=2, min_ready_s=0.0)
READY = ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=1)
SICK = replace(READY, unhealthy=True, error="check_health said no")


def desired(backend: Backend = V1) -> Desired:
    return Desired().apply(ChangeSet(put_backends=(backend,)))


def launched(
    ids: Iterable[str], *, backend: Backend = V1, report: ObservedReport = READY, now: float = 0.0
) -> Observed:
    """Replicas that this controller has started with this backend, and that are ready."""
    return with_launched(Observed(), ids, backend=backend, report=report, now=now)


def with_launched(
    observed: Observed, ids: Iterable[str], *, backend: Backend = V1, report: ObservedReport = READY, now: float = 0.0
) -> Observed:
    for name in ids:
        template = template_of(backend)
        observed = launches.launched(
            observed, name, "v1", template=template, pid=1, now=now, fixed=fixed_of(backend)
        ).observed
        observed = transitions.attached(
            observed, Hello(replica_id=name, incarnation="1", backend="v1"), now=now
        ).observed
        observed = say(observed, name, report, now=now)
    return observed


def say(observed: Observed, name: str, report: ObservedReport, *, now: float) -> Observed:
    return transitions.reported(observed, name, "1", report, now=now).observed


def look(state: Desired, observed: Observed, now: float = 100.0, *, launches: bool = True) -> BackendOutcome:
    return reconcile_backend("v1", state, observed, now, owners=(), launches=launches, time_of_day_s=now)


def drained(outcome: BackendOutcome) -> dict[str, str]:
    """Who is told to go, and why."""
    return {it.replica_id: it.message for it in outcome.actions if isinstance(it, DrainReplica)}


def starts(outcome: BackendOutcome, observed: Observed) -> int:
    """How many more start than run already with the same template."""
    wanted = [it for it in outcome.actions if isinstance(it, StartReplicas)]
    running = [it.template for it in observed.replicas() if it.launched and not it.reaped]
    return sum(it.count - running.count(template_of(it.backend)) for it in wanted)


def test_another_one_is_ready_before_a_sick_one_goes() -> None:
    observed = say(launched("ab"), "a", SICK, now=100.0)
    outcome = look(desired(), observed)
    assert (starts(outcome, observed), drained(outcome)) == (1, {})
    record = observed.replica("a")
    assert record is not None
    assert record.takes_calls, "it does its best meanwhile"
    starting = launches.launched(
        observed, "c", "v1", template=template_of(V1), pid=1, now=100.0, fixed=fixed_of(V1)
    ).observed
    assert look(desired(), starting) == BackendOutcome()
    observed = with_launched(observed, "c", now=101.0)
    outcome = look(desired(), observed, 101.0)
    assert (starts(outcome, observed), drained(outcome)) == (0, {"a": UNHEALTHY})


def test_one_that_was_sick_is_not_well_again() -> None:
    observed = say(say(launched("a"), "a", SICK, now=100.0), "a", READY, now=101.0)
    record = observed.replica("a")
    assert record is not None
    assert record.is_unhealthy


@pytest.mark.parametrize("launches", [True, False])
def test_one_that_somebody_else_started_goes_at_once(launches: bool) -> None:
    observed = transitions.attached(Observed(), Hello(replica_id="x", incarnation="1", backend="v1"), now=0.0).observed
    observed = say(observed, "x", SICK, now=100.0)
    assert drained(look(desired(replace(V1, num_replicas=0)), observed, launches=launches)) == {"x": UNHEALTHY}


def test_those_that_get_sick_young_are_replaced_later_and_later() -> None:
    observed, state, waits = Observed(), desired(replace(V1, num_replicas=1)), []
    for number, name in enumerate("abcd"):
        now = 200.0 + 50.0 * number
        observed = say(with_launched(observed, name, now=now), name, SICK, now=now + QUICK_DEATH_S / 2)
        outcome = look(state, observed, now + QUICK_DEATH_S / 2)
        assert starts(outcome, observed) == 0
        waits.append(outcome.retry_after_s)
    assert waits == [FIRST_INTERVAL_S * 2**number for number in range(4)]


@pytest.mark.parametrize("says_so", [True, False])
def test_its_end_is_the_same_death_as_its_sickness(says_so: bool) -> None:
    observed = say(launched("ab", now=100.0), "a", SICK, now=101.0)
    counted = observed.restarts_of("v1", template_of(V1))
    if says_so:
        observed = say(observed, "a", ObservedReport(state=ReplicaState.STOPPED, unhealthy=True), now=140.0)
    observed = launches.exited(observed, "a", "exited with status 1", failed=True, now=141.0).observed
    assert observed.restarts_of("v1", template_of(V1)) == counted
    assert [it for it in look(desired(), observed, 142.0).actions if isinstance(it, ForgetReplica)]


def test_what_is_wrong_is_shown_and_told() -> None:
    transition = transitions.reported(launched("a"), "a", "1", SICK, now=100.0)
    record = transition.observed.replica("a")
    assert record is not None
    assert (record.error, record.shown_state) == ("check_health said no", ReplicaState.READY)
    assert [(it.kind, it.message) for it in transition.notices] == [
        (EventKind.REPLICA_UNHEALTHY, "v1: check_health said no")
    ]


# -- new configurations ------------------------------------------------------------------------------------------


def test_replicas_that_take_a_new_configuration_while_they_live_stay() -> None:
    observed = launched("ab", report=replace(READY, reconfigures=True))
    changed = desired(replace(V1, user_config={"k": 2}))
    assert replace(look(changed, observed), rollout=NO_STEP) == BackendOutcome()


@pytest.mark.parametrize(
    "change", [{"handler": "app:Two"}, {"handler": "app:Two", "user_config": {"k": 2}}, {"own_loop": True}]
)
def test_another_handler_replaces_them_all_the_same(change: dict[str, object]) -> None:
    observed = launched("ab", report=replace(READY, reconfigures=True))
    changed = replace(V1, **change)  # type: ignore[arg-type]
    assert starts(look(desired(changed), observed), observed) == 2
    observed = with_launched(observed, "cd", backend=changed)
    assert drained(look(desired(changed), observed)).keys() == {"a", "b"}


def test_replicas_that_do_not_are_replaced_new_ones_first() -> None:
    observed = launched("ab")
    changed = replace(V1, user_config={"k": 2})
    outcome = look(desired(changed), observed)
    assert (starts(outcome, observed), drained(outcome)) == (2, {})
    observed = with_launched(observed, "cd", backend=changed)
    assert drained(look(desired(changed), observed)).keys() == {"a", "b"}
