"""The task that looks at the load: policies of the operator's own, and what it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller_service.config import ControllerSettings
from controller_service.core import routers, transitions
from controller_service.core.autoscaling.figures import figures_of
from controller_service.core.backend_load import BackendLoad
from controller_service.core.desired import ChangeSet
from controller_service.core.observed import Observed, ObservedRouter, ReplicaState
from controller_service.core.transitions import Hello, ObservedReport
from controller_service.shell.autoscaler import Autoscaler
from controller_service.shell.events import EventFeed
from controller_service.shell.mesh_state import Key, MeshState
from controller_service.shell.scale_policies import load_policies
from controller_service.shell.work_queue import WorkQueue
from controller_service.store.memory import MemoryStore
from slotmesh.autoscaling import ScaleFigures
from slotmesh.config import SettingsError
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.autoscale import Autoscale
from slotmesh.spec.model import Backend

NAME = "tests.unit.controller.test_autoscaler:five"


def five(figures: ScaleFigures) -> int:
    return 5


def fail(figures: ScaleFigures) -> int:
    raise ValueError("a secret")


def report(observed: Observed, router_id: str, now: float, *loads: BackendLoad) -> Observed:
    known: dict[str, Any] = {"generation": "g", "revision": 1, "linked_replica_ids": (), "linked": frozenset()}
    return routers.reported(observed, router_id, **known, loads=loads, now=now).observed


def test_figures_are_sums_over_routers_until_they_are_gone() -> None:
    observed = Observed()
    for router_id in ("r1", "r2", "r3"):
        router = ObservedRouter(router_id=router_id, address="h:1", started_at=0.0)
        observed = routers.attached(observed, router).observed
    observed = report(observed, "r1", 1.0, BackendLoad(backend="b", queued=1, ongoing=2, queue_time_s=0.5, sent=7))
    other = BackendLoad(backend="other", queued=100, ongoing=100)
    observed = report(observed, "r2", 4.0, BackendLoad(backend="b", queued=3, ongoing=4, queue_time_s=0.2), other)
    figures = figures_of("b", observed, 2, 4.5)
    assert (figures.queued, figures.ongoing, figures.queue_time_s, figures.sent) == (4, 6, 0.5, 7)
    assert (figures.routers, figures.late, figures.silent, figures.is_complete) == (3, 1, 1, False)
    for router_id in ("r1", "r3"):
        observed = routers.left(observed, router_id, "was silent past its lease").observed
    figures = figures_of("b", observed, 2, 4.5)
    assert (figures.queued, figures.ongoing, figures.late, figures.is_complete) == (3, 4, 0, True)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("policy", "number", "why"),
    [
        (five, 5, f"policy {NAME} says 5"),
        (lambda _: 10**30, 8, "says 10,000"),
        (lambda _: "many", 1, "has returned a str, not a whole number: the number stays"),
        (lambda _: True, 1, "has returned a bool"),
        (fail, 1, "has raised ValueError: the number stays"),
        (None, 1, "is none of this controller's --autoscale-policies"),
    ],
)
async def test_a_policy_of_ones_own(policy: Callable[[ScaleFigures], int] | None, number: int, why: str) -> None:
    queue = WorkQueue[Key]()
    state = MeshState(MonotonicClock(), queue, EventFeed("f"))
    store = MemoryStore(generation="0" * 32)
    rules = Autoscale(max=8, policy=NAME, up_delay_s=0.0, up_rate=100.0)
    backend = Backend(name="b", handler="a:B", autoscale=rules)
    await store.commit(ChangeSet(put_backends=(backend,)), expected_revision=0)
    autoscaler = Autoscaler(store, state, {} if policy is None else {NAME: policy})
    autoscaler.look()
    hello = Hello(replica_id="b-1", incarnation="1" * 32, backend="b")
    ready = ObservedReport(state=ReplicaState.READY, address="h:1")
    state.apply_to_replica("b-1", lambda it, now: transitions.attached(it, hello, now=now))
    state.apply_to_replica("b-1", lambda it, now: transitions.reported(it, "b-1", hello.incarnation, ready, now=now))
    autoscaler.look()
    scale = state.observed.scales["b"]
    assert scale.number == number
    assert why in scale.latest.why
    assert "a secret" not in scale.latest.why
    queue.close()


def test_policies_are_loaded_at_the_start_or_the_start_is_refused() -> None:
    assert load_policies((NAME,)) == {NAME: five}
    with pytest.raises(CannotStart, match=r"--autoscale-policies no_such:f: no_such cannot be imported"):
        load_policies(("no_such:f",))
    with pytest.raises(CannotStart, match="has no function nothing"):
        load_policies(("tests.unit.controller.test_autoscaler:nothing",))
    with pytest.raises(SettingsError, match="'nothing' is not MODULE:NAME"):
        ControllerSettings.parse(["--autoscale-policies=a:b, nothing"], {}, prog="controller")
