"""From exactly which value on a check warns, and says that something is wrong. The numbers are written down by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from slotmesh.cli.checking.findings import Section, SeenMesh, Severity, Validity
from slotmesh.cli.commands.check import findings_of
from slotmesh.cli.controller_view import STARTING_STATE
from tests.support.messages import changed
from tests.unit.cli.checking.meshes import (
    CONTROLLER_ANSWER,
    DAY_S,
    NOW,
    REPLICA,
    REPLICA_ANSWER,
    ROUTER_ANSWER,
    SEEN,
    with_replicas,
    with_router,
)

OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR
TICK: Final = 1e-3


def worst(seen: SeenMesh, section: Section) -> Severity:
    found = {it.severity for it in findings_of(seen) if it.section is section}
    return next(it for it in (ERROR, WARNING, OK) if it in found)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("off_s", "uncertain_s", "severity"),
    [
        (1.0 - TICK, 0.0, OK),
        (1.0, 0.0, WARNING),
        (30.0 - TICK, 0.0, WARNING),
        (30.0, 0.0, ERROR),
        (1.5, 0.5 + TICK, OK),
        (1.5, 0.5, WARNING),
        (30.5, 0.5, ERROR),
        (30.5, 0.5 + TICK, WARNING),
    ],
)
def test_a_clock(off_s: float, uncertain_s: float, severity: Severity, sign: float) -> None:
    answers = (
        CONTROLLER_ANSWER,
        replace(ROUTER_ANSWER, ahead_s=sign * off_s, uncertain_s=uncertain_s),
        replace(REPLICA_ANSWER, ahead_s=0.0, uncertain_s=0.0),
    )
    assert worst(replace(SEEN, answers=answers), Section.CLOCKS) is severity


@pytest.mark.parametrize(("count", "severity"), [(799, OK), (800, WARNING), (949, WARNING), (950, ERROR)])
def test_open_descriptors_of_a_thousand(count: int, severity: Severity) -> None:
    assert worst(with_router(open_descriptors=count, max_descriptors=1_000), Section.DESCRIPTORS) is severity


@pytest.mark.parametrize(
    ("left_s", "severity"),
    [(20 * DAY_S, OK), (20 * DAY_S - TICK, WARNING), (DAY_S, WARNING), (DAY_S - TICK, ERROR), (0.0, ERROR)],
)
def test_what_is_left_of_a_certificate_of_a_hundred_days(left_s: float, severity: Severity) -> None:
    assert of_certificate(left_s, 100 * DAY_S) == ([] if severity is OK else [severity])


@pytest.mark.parametrize(
    ("left_s", "severity"), [(720.0, OK), (720.0 - TICK, WARNING), (180.0, WARNING), (180.0 - TICK, ERROR)]
)
def test_what_is_left_of_a_certificate_of_an_hour(left_s: float, severity: Severity) -> None:
    assert of_certificate(left_s, 3_600.0) == ([] if severity is OK else [severity])


def of_certificate(left_s: float, lifetime_s: float) -> list[Severity]:
    """What is found of a router's certificate, if anything is."""
    ends_at = NOW + left_s
    certificate = Validity(ends_at - lifetime_s, ends_at)
    return [
        it.severity
        for it in findings_of(with_router(certificate=certificate))
        if it.section is Section.CERTIFICATES and it.text.startswith("certificate of router/r")
    ]


@pytest.mark.parametrize(("restarts", "severity"), [(2, WARNING), (3, ERROR), (4, ERROR)])
def test_restarts_of_a_replica_beside_one_that_is_ready(restarts: int, severity: Severity) -> None:
    starting = changed(REPLICA, replica_id="b-2", state=STARTING_STATE, restart_count=restarts)
    assert worst(with_replicas(REPLICA, starting, wanted=2), Section.BACKENDS) is severity
