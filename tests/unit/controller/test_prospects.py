"""Whether replicas of a backend without a ready one are on their way, as routing tables say it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed import launches, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ReplicaState
from controller_service.core.reconciling.endpoints import EndpointOutcome, EndpointOutcomes
from controller_service.core.reconciling.routes import build_routes
from controller_service.core.routing import AnnouncedTable
from slotmesh.spec.model import Autoscale, Backend, Endpoint, Prospect, TrafficPolicy
from slotmesh.v1 import mesh_pb2
from tests.support.tables import as_announced
from tests.unit.controller.scales import ScaledBackend

V1 = Backend(name="v1", handler="app:One", num_replicas=2)
READY = ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=1)
FAILED = ObservedReport(state=ReplicaState.FAILED, error="ValueError: no")


def desired(*backends: Backend) -> Desired:
    return Desired().apply(ChangeSet(put_backends=backends))


def prospect(observed: Observed, backend: Backend | None = V1, *, launches: bool = True) -> Prospect:
    """What the table says of v1."""
    state = desired(backend) if backend is not None else Desired()
    routes = build_routes(state, observed, launches=launches)
    return routes.backends[0].prospect


def start(observed: Observed, replica_id: str, now: float, backend: Backend = V1) -> Observed:
    """This controller starts a replica, and that attaches."""
    template = template_of(backend)
    observed = launches.launched(observed, replica_id, "v1", template=template, pid=1, now=now).observed
    return attach(observed, replica_id, now)


def attach(observed: Observed, replica_id: str, now: float, incarnation: str = "1") -> Observed:
    hello = Hello(replica_id=replica_id, incarnation=incarnation, backend="v1")
    return transitions.attached(observed, hello, now=now).observed


def say(observed: Observed, replica_id: str, report: ObservedReport, now: float, incarnation: str = "1") -> Observed:
    return transitions.reported(observed, replica_id, incarnation, report, now=now).observed


def end(observed: Observed, replica_id: str, now: float) -> Observed:
    """Its constructor has raised, and its process was reaped."""
    observed = say(observed, replica_id, FAILED, now)
    return launches.exited(observed, replica_id, "exited with status 1", failed=True, now=now).observed


def test_replicas_come_until_the_first_of_them_fails() -> None:
    observed = Observed()
    assert prospect(observed) is Prospect.COMING, "they are started in a moment"
    observed = start(start(observed, "a", 0.0), "b", 0.1)
    assert prospect(observed) is Prospect.COMING
    observed = end(observed, "a", 1.0)
    assert prospect(observed) is Prospect.COMING, "the other one has not failed"
    observed = end(observed, "b", 1.1)
    assert prospect(observed) is Prospect.FAILING
    observed = start(observed, "c", 2.0)
    assert prospect(observed) is Prospect.FAILING, "it is tried again, and may well fail again"
    observed = say(observed, "c", READY, 3.0)
    assert prospect(observed) is Prospect.UNKNOWN, "said of backends without a ready replica only"


def test_new_settings_are_a_new_beginning() -> None:
    observed = end(start(Observed(), "a", 0.0), "a", 1.0)
    assert prospect(observed) is Prospect.FAILING
    mended = replace(V1, handler="app:Mended")
    assert prospect(observed, mended) is Prospect.COMING
    observed = start(observed, "b", 2.0, mended)
    assert prospect(observed, mended) is Prospect.COMING
    assert prospect(end(observed, "b", 3.0), mended) is Prospect.FAILING


def test_a_process_that_cannot_be_started_is_a_failure() -> None:
    template = template_of(V1)
    observed = launches.launch_failed(Observed(), "a", "v1", "no such file", now=0.0, template=template).observed
    assert prospect(observed) is Prospect.FAILING


def test_replicas_that_die_in_service_are_replaced() -> None:
    """Quick deaths make the next start wait; calls wait with it."""
    observed = Observed()
    for number in range(5):
        observed = say(start(observed, f"r{number}", float(number)), f"r{number}", READY, number + 0.1)
        observed = launches.exited(observed, f"r{number}", "was killed", failed=True, now=number + 0.5).observed
        assert prospect(observed) is Prospect.COMING


@pytest.mark.parametrize("launches", [False, True])
def test_a_backend_that_was_deleted_has_no_future(launches: bool) -> None:
    observed = say(start(Observed(), "a", 0.0), "a", READY, 1.0)
    observed = transitions.drain_requested(observed, "a", "deleted").observed
    assert prospect(observed, None, launches=launches) is Prospect.NONE


def test_where_none_should_run_none_comes() -> None:
    none = replace(V1, num_replicas=0)
    assert prospect(Observed(), none) is Prospect.NONE
    observed = say(start(Observed(), "a", 0.0, none), "a", READY, 1.0)
    assert prospect(observed, none) is Prospect.UNKNOWN, "one is there"
    observed = transitions.drain_requested(observed, "a", "0 should run").observed
    assert prospect(observed, none) is Prospect.NONE
    assert prospect(Observed(), none, launches=False) is Prospect.UNKNOWN, "somebody else decides"


def test_a_backend_that_follows_its_load_comes_when_it_is_called() -> None:
    scaled = replace(V1, num_replicas=None, autoscale=Autoscale(min=0))
    assert prospect(Observed(), scaled) is Prospect.COMING, "a call that waits has one started"
    observed = end(start(Observed(), "a", 0.0, scaled), "a", 1.0)
    assert prospect(observed, scaled) is Prospect.COMING, "none runs any more: the next call is a new try"
    scale = ScaledBackend(Autoscale(min=0), 1).scale
    assert prospect(observed.with_scales({"v1": scale}), scaled) is Prospect.FAILING, "it is tried, and fails"


@pytest.mark.parametrize(("wanted", "failed"), [(None, 1), (1, 1), (2, 2)])
def test_where_somebody_else_starts_replicas_any_may_come(wanted: int | None, failed: int) -> None:
    backend = replace(V1, num_replicas=wanted)
    observed = Observed()
    for number in range(failed):
        assert prospect(observed, backend, launches=False) is Prospect.UNKNOWN
        observed = attach(observed, f"r{number}", 0.0)
        assert prospect(observed, backend, launches=False) is Prospect.COMING
        observed = say(observed, f"r{number}", FAILED, 1.0)
    assert prospect(observed, backend, launches=False) is Prospect.FAILING
    again = attach(observed, "r0", 2.0, incarnation="2")
    assert prospect(again, backend, launches=False) is Prospect.COMING


@pytest.mark.parametrize("it", Prospect)
def test_tables_say_it(it: Prospect) -> None:
    routes = build_routes(desired(V1), Observed())
    routes = replace(routes, backends=(replace(routes.backends[0], prospect=it),))
    wire = as_announced(AnnouncedTable(generation="g", revision=1, routes=routes))
    assert mesh_pb2.Prospect.Name(wire.backends[0].prospect) in {
        f"PROSPECT_{it.name}",
        "PROSPECT_UNSPECIFIED" if it is Prospect.UNKNOWN else "",
    }


def test_keys_do_not_wait_for_replicas_of_a_backend_that_fails() -> None:
    weights = {"v1": 0.1, "good": 0.9}
    endpoint = Endpoint(name="e", traffic=TrafficPolicy(weights=weights))
    state = Desired().apply(ChangeSet(put_backends=(V1, Backend(name="good")), put_endpoints=(endpoint,)))
    observed = start(Observed(), "a", 0.0)
    hello = Hello(replica_id="g", incarnation="1", backend="good")
    observed = say(transitions.attached(observed, hello, now=0.0).observed, "g", READY, 1.0)

    def assigned(observed: Observed) -> EndpointOutcome:
        return EndpointOutcomes(state, observed, 1.0, launches=True).of(endpoint)

    assert assigned(observed).ownership is None, "it may come, and have its share of the keys from the beginning"
    outcome = assigned(end(observed, "a", 1.0))
    assert outcome.ownership is not None
    assert [owner.replica_id for owner in outcome.ownership.owners] == ["g"]
