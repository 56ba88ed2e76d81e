"""Every time after which the controller decides otherwise: just before it holds what did, exactly then no more.

The numbers are written down by hand, and not asked of the code under test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import pytest

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.loads import RecentReports
from controller_service.core.observed.leases import Leases
from controller_service.core.observed.replica_groups import is_counted
from controller_service.core.observed.state import Observed, ObservedReplica, ObservedRouter, ReplicaState, Restarts
from controller_service.core.observed.transitions import after_death
from controller_service.core.partition_owners import Incarnation
from controller_service.core.reconciling.backends import ForgetReplica, find_endings, reconcile_backend
from controller_service.core.reconciling.rollouts import EndedCalls, find_failure, is_available
from controller_service.core.reconciling.shift_steps import CallFlow, StepFigures
from controller_service.core.roster import IncarnationRoster, ListedIncarnation
from slotmesh.spec.model import Backend

REPLICA: Final = ObservedReplica(
    replica_id="a", backend="v1", state=ReplicaState.READY, started_at=0.0, incarnation="1", ready_at=0.0
)
BACKEND: Final = Backend(name="v1", handler="a:B", num_replicas=1, min_ready_s=7.0, progress_deadline_s=9.0)
NEW: Final = replace(REPLICA, launched=True, template=template_of(BACKEND))


def is_renewed(now: float) -> bool:
    leases = Leases(lease_s=3.0)
    leases.renew("a", 0.0)
    return leases.is_renewed("a", now) and not leases.expire(now)


def outlives(replica: ObservedReplica, give_up_after_s: float = 8.0) -> Callable[[float], bool]:
    def is_left(now: float) -> bool:
        found = find_endings([replica], now, launches=True, give_up_after_s=give_up_after_s)
        return not found.hung and not found.leaving

    return is_left


def is_quick_death(now: float) -> bool:
    return after_death(Restarts(), REPLICA, now).streak == 1


def is_remembered(now: float) -> bool:
    """A silent replica that somebody else has started, and that was never listed."""
    silent = replace(REPLICA, ready_at=None, address="", suspect_since=0.0, state=ReplicaState.STARTING)
    desired = Desired().apply(ChangeSet(put_backends=(BACKEND,)))
    outcome = reconcile_backend(
        "v1", desired, Observed().with_replica(silent), now, owners=(), launches=False, time_of_day_s=now
    )
    return ForgetReplica("a") not in outcome.actions


def is_fresh(now: float) -> bool:
    router = ObservedRouter(router_id="r", address="h:1", started_at=0.0, run_id="x", reported_at=0.0)
    return StepFigures(["v2"]).flow({"r": router}, now) is CallFlow.NONE


def is_in_time(now: float) -> bool:
    starting = replace(NEW, state=ReplicaState.STARTING, ready_at=None)
    return not find_failure([starting], BACKEND, NEW.template, now, ended_calls={})


def has_short_lease(now: float) -> bool:
    return not is_available(NEW, now, BACKEND.min_ready_s)


def is_departure_listed(now: float) -> bool:
    member = ListedIncarnation(owner=REPLICA.owner, backend="b", address="h:1", max_ongoing=1)
    roster = IncarnationRoster().listing((member,), generation="g", revision=1, now=0.0)
    roster = roster.listing((), generation="g", revision=2, now=0.0)
    other = replace(member, owner=Incarnation("z", "1"))
    return (
        roster.listing((other,), generation="g", revision=3, now=now)
        .listing((), generation="g", revision=4, now=now)
        .has_departed(REPLICA.owner)
    )


def is_earlier_kept(now: float) -> bool:
    reports: RecentReports[int] = RecentReports()
    for at, report in ((0.0, 1), (1.0, 2), (now, 3)):
        reports.add(report, at)
    return reports.earlier == 1


@dataclass(frozen=True)
class Moment:
    """A time at which something ends: just before it holds, and exactly then no more."""

    what: str
    at_s: float
    holds: Callable[[float], bool]


MOMENTS: Final = (
    Moment("a lease", 3.0, is_renewed),
    Moment("the silence of one that has served", 18.0, outlives(replace(NEW, suspect_since=10.0))),
    Moment("the silence of one that starts", 120.0, outlives(replace(NEW, incarnation="", ready_at=None))),
    Moment("the silence of one that was found", 130.0, outlives(replace(NEW, incarnation="", suspect_since=10.0))),
    Moment("the silence of one that is not ready", 130.0, outlives(replace(NEW, suspect_since=10.0, ready_at=None))),
    Moment(
        "the silence of one that is not ready, with much patience",
        310.0,
        outlives(replace(NEW, suspect_since=10.0, ready_at=None), 300.0),
    ),
    Moment("the time to exit of one that has ended", 15.0, outlives(replace(NEW, ended_at=10.0))),
    Moment("a quick death", 10.0, is_quick_death),
    Moment("the memory of a silent one", 600.0, is_remembered),
    Moment(
        "the time in which one comes back",
        20.0,
        lambda now: is_counted(replace(NEW, launched=False, suspect_since=10.0), now),
    ),
    Moment("the progress deadline", 9.0, is_in_time),
    Moment("the time until a new one counts", 7.0, has_short_lease),
    Moment("the listing of a departure", 600.0, is_departure_listed),
    Moment("the age of an earlier report", 3.0, is_earlier_kept),
)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda it: it.what)
def test_it_ends_exactly_at_its_time(moment: Moment) -> None:
    found = [moment.holds(moment.at_s - before) for before in (0.001, 0.0)]
    assert found == [True, False]


def test_a_report_is_fresh_up_to_exactly_two_and_a_half_seconds() -> None:
    assert [is_fresh(now) for now in (2.5, 2.501)] == [True, False]


def test_failures_are_judged_from_exactly_twenty_calls_on_and_above_exactly_the_rate() -> None:
    old, new = replace(REPLICA, replica_id="old", template="other"), replace(NEW, replica_id="new")
    backend = replace(BACKEND, max_error_rate=0.25)
    for total, failed, is_failure in ((19, 19, False), (20, 20, True), (20, 10, False), (20, 11, True)):
        calls = {"old": EndedCalls(4, 1), "new": EndedCalls(total, failed)}
        found = find_failure([old, new], backend, NEW.template, 100.0, ended_calls=calls)
        assert bool(found) is is_failure, (total, failed)
