"""Which members a check reports as lost, and what follows from the loss of a replica."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.cli.checking.findings import LostMember, Section, Severity
from slotmesh.cli.checking.losses import HANGS, LOST_WITHIN_S, lost_among, still_lost
from slotmesh.cli.commands.check import runnable
from slotmesh.cli.controller_view import SUSPECT_STATE
from slotmesh.v1 import controller_service_pb2 as pb
from tests.support.messages import changed
from tests.unit.cli.checking.meshes import NOW, REPLICA, SEEN, SNAPSHOT, wrong

SILENT = "was silent past its lease: its connection broke"
ROUTER_GONE = replace(SNAPSHOT.members, routers=())
SUSPECT = replace(SNAPSHOT.members, replicas=(REPLICA, changed(REPLICA, replica_id="b-2", state=SUSPECT_STATE)))


def event(subject: str, message: str, age_s: float) -> pb.WatchEventsResponse:
    at = Timestamp(seconds=round(NOW - age_s))
    return pb.WatchEventsResponse(time=at, resource=subject, message=message)


def test_a_router_that_came_back_and_was_stopped_in_order_is_not_lost() -> None:
    events = [event("router/r", SILENT, 30), event("router/r", "said goodbye; its own reason: SIGTERM", 8)]
    assert still_lost(lost_among(events), ROUTER_GONE, NOW) == ()


def test_a_router_that_was_stopped_in_order_once_and_is_lost_now_is_lost() -> None:
    events = [event("router/r", "said goodbye", 30), event("router/r", SILENT, 8)]
    assert still_lost(lost_among(events), ROUTER_GONE, NOW) == (LostMember("router/r", NOW - 8, SILENT),)
    assert still_lost(lost_among(events), SNAPSHOT.members, NOW) == (), "it is attached again"


def test_a_router_is_lost_for_an_hour_and_a_replica_for_as_long_as_it_is_suspect() -> None:
    long_ago = [event(subject, SILENT, LOST_WITHIN_S + 1) for subject in ("router/r", "replica/b-2")]
    members = replace(SUSPECT, routers=())
    assert [it.subject for it in still_lost(lost_among(long_ago), members, NOW)] == ["replica/b-2"]
    assert still_lost(lost_among(long_ago), ROUTER_GONE, NOW) == (), "the replica has ended, or was replaced"


def test_a_suspect_replica_of_whose_loss_no_event_is_left_is_lost() -> None:
    assert [it.subject for it in still_lost({}, SUSPECT, NOW)] == ["replica/b-2"]


@pytest.mark.parametrize("at", [NOW, None])
def test_what_waits_for_a_lost_replica_and_the_command_that_ends_that_are_named(at: float | None) -> None:
    lost = (LostMember("replica/b-2", at, SILENT),)
    (finding,) = wrong(replace(SEEN, lost_members=lost), Section.ROUTERS)
    assert finding.severity is Severity.WARNING
    assert "calls of its ordering keys wait" in finding.text
    assert "`slotmesh forget replica/b-2`" in finding.fix
    assert "`slotmesh forget replica/b-2 --address h:7`" in runnable(finding.fix, "--address h:7")


def test_a_router_in_whose_place_another_one_is_attached_is_not_lost() -> None:
    for at, is_lost in (("127.0.0.1:2", False), ("127.0.0.1:22", True)):
        left = event("router/q", f"{SILENT}, at {at}; its own reason: SIGTERM", 5)
        assert [it.subject for it in still_lost(lost_among([left]), SNAPSHOT.members, NOW)] == ["router/q"] * is_lost


@pytest.mark.parametrize(("why", "severity"), [(HANGS, Severity.ERROR), ("its connection broke", Severity.WARNING)])
def test_a_router_that_hangs_is_an_error_and_its_process_is_to_be_ended(why: str, severity: Severity) -> None:
    message = f"was silent past its lease: {why}, at 127.0.0.1:7, process 12"
    (finding,) = wrong(replace(SEEN, lost_members=(LostMember("router/q", NOW, message),)), Section.ROUTERS)
    assert (finding.severity, message in finding.text) == (severity, True)
    assert ("end it (SIGKILL), and start another" in finding.fix) == (why == HANGS)
