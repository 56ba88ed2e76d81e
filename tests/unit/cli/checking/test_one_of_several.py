"""What is wrong with one of several is found whichever it is, and nothing is said of the others.

A mesh with three of everything; a row for each fault, which is put into each place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from slotmesh.cli.checking.findings import Section, SeenMesh, Severity, Validity
from slotmesh.cli.commands.check import findings_of
from slotmesh.cli.controller_view import Members
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from tests.support.messages import changed
from tests.unit.cli.checking.meshes import (
    CONTROLLER_ANSWER,
    DAY_S,
    NOW,
    REPLICA,
    REPLICA_ANSWER,
    ROUTER,
    ROUTER_ANSWER,
    SEEN,
    SNAPSHOT,
    announced,
    but,
    wrong,
)

NUMBERS: Final = (0, 1, 2)
LINKED: Final = frozenset(f"b{it}-1" for it in NUMBERS)
VALID: Final = Validity(NOW - DAY_S, NOW + 300 * DAY_S)


def three() -> SeenMesh:
    """Three routers, three replicas of a backend each, and three endpoints: all is well."""
    routers = tuple(
        changed(ROUTER, router_id=f"r{it}", address=f"127.0.0.1:2{it}", linked_replica_ids=LINKED) for it in NUMBERS
    )
    replicas = tuple(
        changed(REPLICA, replica_id=f"b{it}-1", backend=f"b{it}", address=f"127.0.0.1:3{it}") for it in NUMBERS
    )
    answers = (
        CONTROLLER_ANSWER,
        *(
            but(ROUTER_ANSWER, announced=announced("router", it.address, it.router_id), server_id=it.router_id)
            for it in routers
        ),
        *(
            but(REPLICA_ANSWER, announced=announced("replica", it.address, it.replica_id), server_id=it.replica_id)
            for it in replicas
        ),
    )
    snapshot = replace(
        SNAPSHOT,
        backends=tuple(Backend(name=f"b{it}", handler="a:B", num_replicas=1) for it in NUMBERS),
        endpoints=tuple(Endpoint(name=f"e{it}", traffic=TrafficPolicy(weights={f"b{it}": 1.0})) for it in NUMBERS),
        members=Members(replicas=replicas, routers=routers, generation="g", table_revision=5),
    )
    return replace(SEEN, snapshot=snapshot, answers=answers)


def answer(seen: SeenMesh, at: int, **changes: Any) -> SeenMesh:
    """The server in this place answers otherwise: the controller is the first."""
    return replace(seen, answers=tuple(but(it, **changes) if n == at else it for n, it in enumerate(seen.answers)))


def of_snapshot(seen: SeenMesh, **changes: Any) -> SeenMesh:
    return replace(seen, snapshot=replace(seen.snapshot, **changes))


def of_members(seen: SeenMesh, **changes: Any) -> SeenMesh:
    return of_snapshot(seen, members=replace(seen.snapshot.members, **changes))


def unreachable(at: int) -> SeenMesh:
    """A replica that does not answer, and to which one of the routers has no link."""
    seen = answer(three(), 5, problem="refused")
    routers = [
        changed(it, linked_replica_ids=LINKED - {"b1-1"}) if number == at else it
        for number, it in enumerate(seen.snapshot.members.routers)
    ]
    return of_members(seen, routers=tuple(routers))


def backend_without_replica(at: int) -> SeenMesh:
    seen = three()
    return of_members(seen, replicas=tuple(it for n, it in enumerate(seen.snapshot.members.replicas) if n != at))


def endpoint_without_policy(at: int) -> SeenMesh:
    seen = three()
    endpoints = [replace(it, traffic=None) if n == at else it for n, it in enumerate(seen.snapshot.endpoints)]
    return of_snapshot(seen, endpoints=tuple(endpoints))


def shadow_that_is_not_there(at: int) -> SeenMesh:
    seen = three()
    shadows = {"b0": 0.5, "none": 0.5, "b2": 0.5}
    traffic = TrafficPolicy(weights={"b1": 0.5, "b2": 0.5}, shadows=shadows)
    endpoints = [replace(it, traffic=traffic) if n == at else it for n, it in enumerate(seen.snapshot.endpoints)]
    return of_snapshot(seen, endpoints=tuple(endpoints))


FAULTS: Final[dict[str, tuple[Callable[[int], SeenMesh], Section, Severity, str]]] = {
    "a router does not answer": (
        lambda at: answer(three(), 1 + at, problem="refused"),
        *(Section.REACHABILITY, Severity.ERROR, "router/r{}"),
    ),
    "another router answers": (
        lambda at: answer(three(), 1 + at, server_id="other"),
        *(Section.REACHABILITY, Severity.ERROR, "router/r{}"),
    ),
    "a replica that only routers reach": (
        lambda at: answer(three(), 4 + at, problem="refused"),
        *(Section.REACHABILITY, Severity.WARNING, "replica/b{}-1"),
    ),
    "a certificate that has ended": (
        lambda at: answer(three(), 1 + at, certificate=Validity(NOW - DAY_S, NOW - 1.0)),
        *(Section.CERTIFICATES, Severity.ERROR, "router/r{}"),
    ),
    "a version": (
        lambda at: answer(three(), 1 + at, version="0.9.0"),
        *(Section.VERSIONS, Severity.WARNING, ""),
    ),
    "a clock": (
        lambda at: answer(three(), 1 + at, ahead_s=40.0),
        *(Section.CLOCKS, Severity.ERROR, "router/r{}"),
    ),
    "open descriptors": (
        lambda at: answer(three(), 1 + at, open_descriptors=960),
        *(Section.DESCRIPTORS, Severity.ERROR, "router/r{}"),
    ),
    "a silent router": (
        lambda at: replace(three(), silent_routers={f"r{at}": 20.0}),
        *(Section.ROUTERS, Severity.ERROR, "router/r{}"),
    ),
    "a router behind": (
        lambda at: replace(three(), lagging_routers=frozenset({f"r{at}"})),
        *(Section.ROUTERS, Severity.ERROR, "router/r{}"),
    ),
    "a router without a link": (
        lambda at: replace(three(), unlinked={f"r{at}": ("b1-1",)}),
        *(Section.ROUTERS, Severity.ERROR, "router/r{}"),
    ),
    "a backend without a replica": (backend_without_replica, Section.BACKENDS, Severity.ERROR, "backend/b{}"),
    "an endpoint without a policy": (endpoint_without_policy, Section.ENDPOINTS, Severity.WARNING, "endpoint/e{}"),
    "an endpoint with a shadow that is not there": (
        shadow_that_is_not_there,
        *(Section.ENDPOINTS, Severity.ERROR, "endpoint/e{}"),
    ),
}


def test_three_of_everything_are_well() -> None:
    assert {it.severity for it in findings_of(three())} == {Severity.OK}


@pytest.mark.parametrize("at", NUMBERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_of_one_is_found_and_the_others_are_well(fault: str, at: int) -> None:
    make, section, severity, subject = FAULTS[fault]
    found = wrong(make(at), section)
    assert {it.severity for it in found} == {severity}
    assert {it.subject for it in found if it.subject} == ({subject.format(at)} if subject else set())


@pytest.mark.parametrize("at", NUMBERS)
def test_a_replica_that_any_router_does_not_reach_is_an_error(at: int) -> None:
    (found,) = wrong(unreachable(at), Section.REACHABILITY)
    assert (found.severity, found.subject) == (Severity.ERROR, "replica/b1-1")


@pytest.mark.parametrize("at", NUMBERS)
def test_each_fault_of_several_is_told(at: int) -> None:
    seen = answer(answer(three(), 1 + at, problem="refused"), 1 + (at + 1) % 3, server_id="other")
    subjects = {it.subject for it in wrong(seen, Section.REACHABILITY)}
    assert subjects == {f"router/r{at}", f"router/r{(at + 1) % 3}"}
