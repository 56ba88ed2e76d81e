"""Traffic for backends without a ready replica: which of them cannot take calls, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed import launches, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.replica_groups import RETURN_WITHIN_S, restored
from controller_service.core.observed.state import Observed, ReplicaState
from controller_service.core.partition_owners import Incarnation
from controller_service.core.reconciling.endpoints import require_ready, rising
from controller_service.core.roster import IncarnationRoster, ListedIncarnation
from slotmesh.spec.model import Autoscale, Backend, InvalidSpec, TrafficPolicy
from tests.unit.controller.scales import ScaledBackend

BACKEND = Backend(name="v1", handler="app:One", num_replicas=2)
NOW = 100.0


def started(report: ObservedReport | None = None, replica_id: str = "a", observed: Observed | None = None) -> Observed:
    """A replica that this controller has launched, and what it has reported."""
    template = template_of(BACKEND)
    known = launches.launched(observed or Observed(), replica_id, "v1", template=template, pid=1, now=NOW).observed
    return attached(report, replica_id, known)


def attached(report: ObservedReport | None, replica_id: str = "a", observed: Observed | None = None) -> Observed:
    hello = Hello(replica_id=replica_id, incarnation="1", backend="v1")
    known = transitions.attached(observed or Observed(), hello, now=NOW).observed
    return known if report is None else transitions.reported(known, replica_id, "1", report, now=NOW).observed


def ready() -> ObservedReport:
    return ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=1)


def failed() -> Observed:
    """Both replicas that should run have failed to start."""
    observed = Observed()
    for replica_id in ("a", "b"):
        report = ObservedReport(state=ReplicaState.FAILED, error="Traceback:\n  in app\nValueError: no model")
        observed = started(report, replica_id, observed)
        observed = launches.exited(observed, replica_id, "exited with status 1", failed=True, now=NOW).observed
    return observed


def silent() -> Observed:
    return transitions.fell_silent(attached(ready()), "a", now=NOW).observed


def draining() -> Observed:
    return transitions.drain_requested(attached(ready()), "a", "a test").observed


def listed(now: float) -> Callable[[], Observed]:
    """A controller has started, `now` seconds ago, with a store that lists a replica."""
    member = ListedIncarnation(owner=Incarnation("a", "1"), backend="v1", address="h:1", max_ongoing=1)
    desired = Desired(roster=IncarnationRoster(members=(member,)))
    return lambda: restored(desired, generation="g", launches=False, now=NOW - now)


SERVED: dict[str, tuple[Callable[[], Observed], bool]] = {
    "a ready replica": (lambda: started(ready()), True),
    "one that others start": (lambda: attached(ready()), False),
    "ready beside one that has failed": (lambda: started(ready(), "c", failed()), True),
    "listed, and the controller has just started": (listed(1.0), False),
}
REFUSED: dict[str, tuple[Callable[[], Observed], bool, str]] = {
    "none is attached": (Observed, False, "no replica of it is attached to this controller. Start one"),
    "none was launched yet": (Observed, True, "its replicas are starting. Wait until one is ready"),
    "starting": (started, True, "its replicas are starting. Wait until one is ready"),
    "starting, of others": (lambda: attached(None), False, "its replicas are starting. Wait until one is ready"),
    "failing": (failed, True, "its replicas fail to start (ValueError: no model). See `slotmesh describe backend/v1`"),
    "silent": (silent, False, "its replicas drain, or do not report. See `slotmesh describe"),
    "draining": (draining, False, "its replicas drain, or do not report. See `slotmesh describe"),
    "listed, and silent since the start": (listed(RETURN_WITHIN_S), False, "drain, or do not report"),
}


def check(observed: Observed, launches_replicas: bool, backend: Backend = BACKEND) -> None:
    desired = Desired().apply(ChangeSet(put_backends=(backend,)))
    require_ready(desired, observed, "e", ["v1"], launches=launches_replicas, now=NOW)


@pytest.mark.parametrize("case", SERVED)
def test_a_backend_that_can_take_calls_is_accepted(case: str) -> None:
    observed, launches_replicas = SERVED[case]
    check(observed(), launches_replicas)


@pytest.mark.parametrize("case", REFUSED)
def test_a_backend_that_cannot_is_refused_with_the_reason_and_the_way_out(case: str) -> None:
    observed, launches_replicas, words = REFUSED[case]
    with pytest.raises(InvalidSpec) as refused:
        check(observed(), launches_replicas)
    (mistake,) = refused.value.violations
    assert mistake.path == "endpoints.e.traffic.v1"
    assert words in mistake.message
    assert mistake.message.startswith("backend v1 has no ready replica: ")
    assert "--force" in mistake.message


def test_a_backend_that_should_have_no_replicas_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"its number of replicas is 0. Start one with `slotmesh scale v1 1`"):
        check(Observed(), True, replace(BACKEND, num_replicas=0))


def test_an_idle_backend_is_accepted_and_one_that_should_run_is_not() -> None:
    rules = Autoscale(min=0, max=2)
    scaled = ScaledBackend(rules)
    backend = replace(BACKEND, num_replicas=None, autoscale=rules)
    check(Observed().with_scales({"v1": scaled.scale}), True, backend)
    busy = ScaledBackend(rules, running=1)
    with pytest.raises(InvalidSpec, match="its replicas are starting"):
        check(Observed().with_scales({"v1": busy.scale}), True, backend)


def test_each_backend_is_named() -> None:
    desired = Desired().apply(
        ChangeSet(put_backends=(BACKEND, replace(BACKEND, name="v2"), replace(BACKEND, name="v3")))
    )
    with pytest.raises(InvalidSpec) as refused:
        require_ready(desired, started(ready()), "e", ["v1", "v2", "v3"], launches=True, now=NOW)
    assert [it.path for it in refused.value.violations] == ["endpoints.e.traffic.v2", "endpoints.e.traffic.v3"]


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        ({"v1": 1.0}, {"v1": 1.0}, []),
        ({"v1": 1.0}, {"v1": 0.5, "v2": 0.5}, ["v2"]),
        ({"v1": 0.5, "v2": 0.5}, {"v2": 1.0}, ["v2"]),
        ({"v1": 0.5, "v2": 0.5}, {"v1": 0.5, "v2": 0.4, "v3": 0.1, "v4": 0.0}, ["v3"]),
        ({}, {"v2": 0.5, "v1": 0.5}, ["v1", "v2"]),
    ],
)
def test_backends_that_get_more_are_those_that_are_looked_at(
    before: dict[str, float], after: dict[str, float], more: list[str]
) -> None:
    assert rising(TrafficPolicy(weights=before) if before else None, TrafficPolicy(weights=after)) == more
