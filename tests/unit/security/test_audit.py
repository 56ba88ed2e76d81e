"""The audit log: a line for who is refused, at most one a second for each method, and one for each change."""

from __future__ import annotations

import logging
from contextvars import copy_context

import pytest

from slotmesh.errors import Failure, Reason
from slotmesh.security.audit import AuditLog
from slotmesh.security.identity import CALLER, RPC, Identity, Role
from tests.support.wait import wait_until

ALICE = Identity(name="client/alice", roles=frozenset({Role.INVOKER}))
DENIED = Failure(reason=Reason.PERMISSION_DENIED, message="secret", metadata={"role": "operator", "other": "secret"})


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "slotmesh.audit"]


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slotmesh.audit")


def test_who_was_refused_what_and_why(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog()
    audit.denied(ALICE, "mesh/Apply", DENIED, "ipv4:127.0.0.1:5", "it is so")
    audit.denied(None, "mesh/Apply", DENIED)
    asked = "method=mesh/Apply reason=PERMISSION_DENIED role=operator"
    assert lines(caplog) == [
        f"denied who=client/alice {asked} peer=ipv4:127.0.0.1:5 why=it is so",
        f"denied who=nobody {asked}",
    ]


@pytest.mark.asyncio
async def test_a_flood_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog(every_s=0.05)
    for _ in range(1000):
        audit.denied(ALICE, "mesh/Apply", DENIED)
    audit.denied(ALICE, "mesh/Delete", DENIED)
    assert len(lines(caplog)) == 2
    await wait_until(lambda: len(lines(caplog)) == 3)
    assert lines(caplog)[2] == "denied again who=client/alice method=mesh/Apply count=999"


def test_a_flood_beside_the_event_loop_is_counted_with_the_next_line(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    audit = AuditLog(lambda: now)
    for _ in range(1000):
        audit.denied(ALICE, "/metrics", DENIED)
    assert len(lines(caplog)) == 1
    now = 1.5
    audit.denied(ALICE, "/metrics", DENIED)
    asked = "who=client/alice method=/metrics"
    assert [line.split(" reason")[0] for line in lines(caplog)[1:]] == [
        f"denied again {asked} count=999",
        f"denied {asked}",
    ]


@pytest.mark.asyncio
async def test_a_flood_of_names_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    audit = AuditLog(lambda: now)
    for number in range(3000):
        audit.denied(Identity(name=f"client/{number}", roles=frozenset()), "mesh/Apply", DENIED)
    assert len(lines(caplog)) == 1025
    assert lines(caplog)[-1].startswith("denied who=others method=several")
    now = 2.0
    audit.denied(ALICE, "mesh/Apply", DENIED)
    assert lines(caplog)[-1].startswith("denied who=client/alice")


def test_changes(caplog: pytest.LogCaptureFixture) -> None:
    AuditLog().changed("--spec mesh.yaml", "backend/digits", 4, 5)
    copy_context().run(change_as, ALICE, "mesh/Apply")
    assert lines(caplog) == [
        "changed who=--spec mesh.yaml method=none object=backend/digits before=4 after=5",
        "changed who=client/alice method=mesh/Apply object=backend/digits before=5 after=6",
    ]


def change_as(identity: Identity, rpc: str) -> None:
    CALLER.set(identity)
    RPC.set(rpc)
    AuditLog().changed("slotmesh at 127.0.0.1", "backend/digits", 5, 6)


def test_a_line_has_a_part_of_a_long_name(caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure(reason=Reason.PERMISSION_DENIED, message="", metadata={"endpoint": "e" * 1_000_000})
    AuditLog().denied(ALICE, "mesh/Call", failure)
    (line,) = lines(caplog)
    assert len(line) < 300
