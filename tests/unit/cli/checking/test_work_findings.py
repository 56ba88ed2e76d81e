"""Findings about the state of the controller, replicas and members, and the commands that hints contain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from replica_service import app as replica_app
from router_service import app as router_app
from slotmesh.cli.checking.findings import LostMember, Section, Severity
from slotmesh.cli.checking.losses import FAILED_PART, is_orderly
from slotmesh.cli.checking.member_findings import ROLLED_BACK_FOR_S
from slotmesh.cli.commands.check import findings_of, runnable
from slotmesh.spec.model import Autoscale, Backend, Prospect
from slotmesh.v1 import mesh_pb2, rollout_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from tests.support.messages import changed
from tests.unit.cli.checking.meshes import (
    CONTROLLER_ANSWER,
    NOW,
    REPLICA,
    SEEN,
    SNAPSHOT,
    but,
    one,
    with_replicas,
    with_router,
    wrong,
)


def test_a_state_that_cannot_be_written_is_wrong() -> None:
    answer = but(CONTROLLER_ANSWER, store_problem="/s: the disk is full: make room on it")
    severity, _, text = one(replace(SEEN, answers=(answer,)), Section.CONTROLLER)
    assert severity is Severity.ERROR
    assert text == "127.0.0.1:1 cannot write its state, and refuses changes: /s: the disk is full: make room on it"


def test_links_that_an_unwritten_state_keeps_waiting_are_not_blamed_on_addresses() -> None:
    unlinked = replace(SEEN, unlinked={"r": ("b-1",)})
    (finding,) = wrong(unlinked, Section.ROUTERS)
    assert "--advertise" in finding.fix
    answer = but(CONTROLLER_ANSWER, store_problem="/s: the disk is full: make room on it")
    (finding,) = wrong(replace(unlinked, answers=(answer,)), Section.ROUTERS)
    assert finding.fix == "make the controller's state writable first: until then it announces no change to routers"


def test_a_ready_replica_of_a_backend_that_there_is_not_is_a_warning() -> None:
    stranger = changed(REPLICA, replica_id="x-1", backend="x")
    seen = with_replicas(REPLICA, stranger)
    assert one(seen, Section.BACKENDS)[:2] == (Severity.WARNING, "replica/x-1")
    assert not wrong(with_replicas(REPLICA, changed(stranger, state=mesh_pb2.REPLICA_STATE_DRAINING)), Section.BACKENDS)


@pytest.mark.parametrize(("least", "is_well"), [(0, True), (1, False)])
def test_a_backend_that_its_load_has_scaled_to_zero_is_well(least: int, is_well: bool) -> None:
    backends = (Backend(name="b", handler="a:B", autoscale=Autoscale(min=least)),)
    members = replace(SNAPSHOT.members, replicas=())
    seen = replace(SEEN, snapshot=replace(SNAPSHOT, members=members, backends=backends, wanted_replicas={"b": 0}))
    assert (not wrong(seen, Section.BACKENDS)) is is_well


def test_members_that_were_lost_are_named_with_the_reason() -> None:
    lost = (
        LostMember(
            "router/r-2", NOW, "was silent past its lease: the controller ended its stream: certificate expired"
        ),
        LostMember("replica/b-2", NOW, "silent past its lease: its connection broke"),
    )
    by_certificate, broke = wrong(replace(SEEN, lost_members=lost), Section.ROUTERS)
    assert (by_certificate.severity, by_certificate.subject) == (Severity.WARNING, "router/r-2")
    assert "certificate expired" in by_certificate.text
    assert "slotmesh certs show" in by_certificate.fix
    assert "its connection broke" in broke.text
    assert "certs" not in broke.fix
    many = tuple(replace(lost[1], subject=f"replica/b-{number}") for number in range(30))
    assert wrong(replace(SEEN, lost_members=many), Section.ROUTERS)[-1].text == "20 more members were lost"


EXPIRED = (
    "was silent past its lease: the controller ended its stream: the credential of router has expired",
    "the certificate of the server has expired: issue it again there",
    "the token t1 of router has expired",
)


@pytest.mark.parametrize("why", EXPIRED)
def test_a_member_whose_own_credential_has_expired_is_not_to_be_started_again_but_to_get_another(why: str) -> None:
    (lost,) = wrong(replace(SEEN, lost_members=(LostMember("router/r-2", NOW, why),)), Section.ROUTERS)
    (unreached,) = wrong(with_router(problem=why), Section.REACHABILITY)
    (silent,) = wrong(replace(with_router(problem=why), silent_routers={"r": 20.0}), Section.ROUTERS)
    for finding in (lost, unreached, silent):
        assert "`slotmesh certs show`" in finding.fix
        assert "start it again" not in finding.fix
    (other,) = wrong(replace(with_router(problem="refused"), silent_routers={"r": 20.0}), Section.ROUTERS)
    assert "certs" not in other.fix


def test_commands_of_a_hint_find_the_mesh_that_was_checked() -> None:
    seen = with_replicas(wanted=2)
    seen = replace(seen, snapshot=replace(seen.snapshot, rollouts=(rollout_pb2.Rollout(backend="b"),)))
    (finding,) = [it for it in findings_of(seen, "--address h:7") if it.section is Section.BACKENDS]
    assert finding.fix == "`slotmesh logs b --address h:7`, `slotmesh status --tracebacks --address h:7`"
    assert runnable("`slotmesh certs rotate`", "--address h:7") == "`slotmesh certs rotate`"


@pytest.mark.parametrize(
    ("message", "orderly"),
    [
        ("said goodbye", True),
        ("said goodbye; its own reason: SIGTERM", True),
        ("said goodbye; its own reason: a part of it has failed, which its log names", False),
        ("was silent past its lease: its connection broke; its own reason: SIGTERM", False),
    ],
)
def test_a_router_that_was_stopped_is_not_lost_and_one_that_ended_for_a_defect_is(message: str, orderly: bool) -> None:
    assert is_orderly(message) is orderly


@pytest.mark.parametrize("reason", [router_app.TASK_FAILED, replica_app.TASK_FAILED])
def test_services_call_a_defect_of_their_own_as_the_check_knows_it(reason: str) -> None:
    assert reason.startswith(FAILED_PART)


def test_a_backend_without_replicas_names_the_own_reason_of_one_that_has_ended() -> None:
    stopped = changed(
        REPLICA, state=mesh_pb2.REPLICA_STATE_STOPPED, end_reason="no controller for 5m (--orphan-timeout)"
    )
    assert one(with_replicas(stopped), Section.BACKENDS)[2].endswith(": no controller for 5m (--orphan-timeout)")


def test_a_change_that_was_taken_back_is_a_warning_with_the_reason_and_the_command_that_shows_more() -> None:
    at = Timestamp(seconds=round(NOW) - 60)
    rollout = rollout_pb2.Rollout(backend="b", phase=rollout_pb2.ROLLOUT_PHASE_COMPLETE, handler="a:B", version="2")
    back = changed(rollout, rollback_reason="3 replicas have died:\n  ValueError: no", rollback_time=at)
    others = (changed(rollout, backend="a"), back, changed(rollout, backend="c"))
    (finding,) = wrong(replace(SEEN, snapshot=replace(SNAPSHOT, rollouts=others)), Section.BACKENDS)
    assert (finding.severity, finding.subject) == (Severity.WARNING, "backend/b")
    assert finding.text == (
        "the newest change of b was rolled back at 2027-01-15 07:59 UTC, a:B 2 is in force:"
        " 3 replicas have died: ValueError: no"
    )
    assert "`slotmesh events backend/b --kind rollout-rolled-back`" in finding.fix
    failing = changed(back, phase=rollout_pb2.ROLLOUT_PHASE_FAILING, problem="r is not ready")
    finding = wrong(replace(SEEN, snapshot=replace(SNAPSHOT, rollouts=(failing,))), Section.BACKENDS)[0]
    assert (finding.severity, finding.text) == (Severity.ERROR, "the rollout of b fails: r is not ready")
    assert "`slotmesh rollback`" not in finding.fix, "it undoes the newest change, which may be another one"
    assert "`slotmesh rollout undo b`" in finding.fix
    assert "`slotmesh delete backend/b`" in finding.fix


def test_a_backend_whose_rollout_fails_is_reported_once() -> None:
    failing = rollout_pb2.Rollout(backend="b", phase=rollout_pb2.ROLLOUT_PHASE_FAILING, problem="r is not ready")
    seen = with_replicas(wanted=1)
    seen = replace(seen, snapshot=replace(seen.snapshot, rollouts=(failing,)))
    (finding,) = wrong(seen, Section.BACKENDS)
    assert finding.text.startswith("the rollout of b fails: r is not ready; b has no replica; calls fail")
    assert "`slotmesh rollout undo b`" in finding.fix


@pytest.mark.parametrize(
    ("changes", "is_reported"),
    [
        ({}, True),
        ({"end_time": Timestamp(seconds=round(NOW - ROLLED_BACK_FOR_S))}, False),
        ({"phase": shift_pb.SHIFT_PHASE_COMPLETE}, False),
        ({"from_weights": {"b": 0.9, "c": 0.1}}, False),
    ],
)
def test_a_shift_that_was_taken_back_is_a_warning_for_an_hour_or_until_the_weights_change(
    changes: dict[str, Any], is_reported: bool
) -> None:
    shift = shift_pb.TrafficShift(
        endpoint="e",
        phase=shift_pb.SHIFT_PHASE_ROLLED_BACK,
        from_weights={"b": 1.0},
        to_weights={"c": 1.0},
        reason="p99 of c is 2 s",
        end_time=Timestamp(seconds=round(NOW - ROLLED_BACK_FOR_S) + 1),
    )
    shift = changed(shift, **changes)
    found = wrong(replace(SEEN, snapshot=replace(SNAPSHOT, shifts=(shift,))), Section.ENDPOINTS)
    assert [(it.severity, it.subject) for it in found] == [(Severity.WARNING, "endpoint/e")] * is_reported
    if is_reported:
        text = "the shift of e to {c: 1} was rolled back at 2027-01-15 07:00 UTC: p99 of c is 2 s"
        assert found[0].text == text


@pytest.mark.parametrize(
    ("prospect", "text"),
    [
        (None, "; calls fail, or wait while a replica starts, and"),
        (Prospect.COMING, "; calls wait for its replicas, which are starting, and"),
        (Prospect.FAILING, "; calls fail, as its replicas fail to start, and"),
        (Prospect.NONE, "; calls fail, as no replica should run, and"),
    ],
)
def test_what_becomes_of_calls_without_a_ready_replica_is_as_routers_decide_it(
    prospect: Prospect | None, text: str
) -> None:
    seen = replace(with_replicas(), prospects={} if prospect is None else {"a": Prospect.UNKNOWN, "b": prospect})
    assert text in one(seen, Section.BACKENDS)[2]


def test_output_of_replicas_that_are_started_elsewhere_is_looked_at_there() -> None:
    none = with_replicas(wanted=1)
    (finding,) = wrong(none, Section.BACKENDS)
    assert "docker compose logs" in finding.fix
    launched = replace(none, snapshot=replace(none.snapshot, rollouts=(rollout_pb2.Rollout(backend="b"),)))
    (finding,) = wrong(launched, Section.BACKENDS)
    assert "`slotmesh logs b`" in finding.fix


@pytest.mark.parametrize(
    ("failures", "calls", "share"),
    [(8.0, 10.0, "8 of 10"), (2.0, 20.0, "2 of 20"), (3.0, 2.0, "3"), (1.9, 2.0, ""), (2.9, 30.0, ""), (0.0, 0.0, "")],
)
def test_an_endpoint_of_whose_calls_many_fail_is_a_warning(failures: float, calls: float, share: str) -> None:
    seen = replace(SEEN, failing_calls={"e": (failures, calls)})
    if not share:
        assert not wrong(seen, Section.ENDPOINTS)
    else:
        text = f"e: {share} calls a second failed or were refused in the last seconds"
        assert one(seen, Section.ENDPOINTS) == (Severity.WARNING, "endpoint/e", text)
