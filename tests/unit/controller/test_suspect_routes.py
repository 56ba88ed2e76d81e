"""What tables say of replicas that the controller does not hear of."""

from __future__ import annotations

from collections.abc import Collection

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed import transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ReplicaState
from controller_service.core.reconciling.routes import build_routes
from controller_service.core.routing import AnnouncedTable
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from tests.support.tables import as_announced
from tests.unit.controller.earlier_tables import TOLD, life, table, take

E = Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0}))
DESIRED = Desired().apply(ChangeSet(put_backends=(Backend(name="v1"), Backend(name="v2")), put_endpoints=(E,)))
READY = ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=1)


def ready(*names: str, backend: str = "v1", observed: Observed | None = None) -> Observed:
    observed = observed or Observed()
    for name in names:
        hello = Hello(replica_id=name, incarnation="1", backend=backend)
        observed = transitions.attached(observed, hello, now=1.0).observed
        observed = transitions.reported(observed, name, "1", READY, now=1.0).observed
    return observed


def silent(observed: Observed, *names: str) -> Observed:
    for name in names:
        observed = transitions.fell_silent(observed, name, now=5.0).observed
    return observed


def suspects(observed: Observed, desired: Desired = DESIRED) -> Collection[str]:
    routes = build_routes(desired, observed)
    wire = as_announced(AnnouncedTable(generation="g", revision=1, routes=routes))
    listed = {each.owner.replica_id: each for backend in routes.backends for each in backend.replicas}
    told = {each.replica_id: each for backend in wire.backends for each in backend.replicas}
    assert {name for name, each in told.items() if each.suspect} == {it for it in listed if listed[it].suspect}
    assert not any(each.draining for each in told.values() if each.suspect), "it can come back"
    return {name for name, each in told.items() if each.suspect}


def test_silent_ones_are_suspect_until_they_are_heard() -> None:
    observed = silent(ready("a", "b", "c"), "a", "b")
    assert suspects(observed) == {"a", "b"}
    assert suspects(transitions.reported(observed, "a", "1", READY, now=6.0).observed) == {"b"}


def test_one_that_has_not_come_back_to_a_new_controller_yet_is_not_suspect_to_routers() -> None:
    state, observed, _ = take(TOLD, ready("b"), table([life("a")]))
    assert observed.replica("a").suspect_since is not None  # type: ignore[union-attr]
    assert suspects(observed, state) == set()
