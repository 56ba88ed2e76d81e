"""The log of failures: each id is in it, and a storm of failures is a few lines."""

from __future__ import annotations

import asyncio

import pytest

from router_service.shell import failure_log
from router_service.shell.failure_log import MAX_LINES, FailureLog
from slotmesh.errors import Executed, Failure, Reason
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

LOST = Failure(
    reason=Reason.REPLICA_LOST,
    message="hush",
    executed=Executed.UNKNOWN,
    metadata={"replica_id": "r1", "backend": "b"},
)
SESSION = "0123456789abcdef"


async def test_a_failure_is_found_by_the_id_that_it_carries(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = FailureLog()
    told = log.noted(LOST, 3, "digits", session=SESSION, call_id=7)
    log.close()
    (line,) = [each for each in caplog.messages if told.metadata["log_ref"] in each]
    for said in ("endpoint=digits", "session=01234567", "replica=r1", "backend=b", "calls=3", "reason=REPLICA_LOST"):
        assert said in line
    assert "hush" not in caplog.text, "the text may be of a handler"
    assert SESSION not in caplog.text, "who knows a session may go on with it"
    assert (told.message, told.executed) == (LOST.message, LOST.executed)


async def test_an_id_of_the_replica_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    failure = Failure(reason=Reason.HANDLER_ERROR, message="no", metadata={"log_ref": "theirs"})
    assert FailureLog().noted(failure, 1, "digits") is failure
    assert not caplog.messages


async def test_failures_that_are_alike_share_an_id_and_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_log, "WINDOW_S", 0.01)
    caplog.set_level("INFO")
    log = FailureLog()
    refs = {log.noted(LOST, 2, "digits").metadata["log_ref"] for _ in range(1000)}
    assert len(refs) == 1
    assert len(caplog.messages) == 1
    await wait_until(lambda: len(caplog.messages) == 2, what="the end of the window")
    assert "calls=1998" in caplog.messages[-1]
    assert refs.pop() in caplog.messages[-1]
    assert log.noted(LOST, 1, "digits").metadata["log_ref"] not in caplog.messages[0]
    log.close()


async def test_what_is_left_out_is_said_and_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = FailureLog()
    refs = [log.noted(LOST, 1, f"endpoint-{number}").metadata["log_ref"] for number in range(10_000)]
    assert len(caplog.messages) == MAX_LINES + 1
    log.close()
    assert len(set(refs)) == MAX_LINES + 1
    assert all(ref in caplog.text for ref in set(refs))
    assert f"calls={10_000 - MAX_LINES}" in caplog.messages[-1]
    await asyncio.sleep(0)


_INFO = {
    *(Reason.ENDPOINT_NOT_FOUND, Reason.METHOD_NOT_FOUND, Reason.BAD_REQUEST, Reason.BAD_ARGUMENTS),
    *(Reason.PAYLOAD_TOO_LARGE, Reason.DUPLICATE_CALL_ID, Reason.PREDECESSOR_FAILED, Reason.HANDLER_ERROR),
    Reason.NO_SLOT,
}
"""What callers and handlers have decided. Written by hand: not what the log believes."""
_DEBUG = {Reason.CANCELLED}


@pytest.mark.parametrize("reason", Reason)
async def test_what_is_no_callers_decision_is_a_warning(reason: Reason, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    log = FailureLog()
    log.noted(Failure(reason=reason, message="no"), 1, "digits")
    log.close()
    levels = [each.levelname for each in caplog.records if f"reason={reason.value}" in each.getMessage()]
    assert levels == ["INFO" if reason in _INFO else "DEBUG" if reason in _DEBUG else "WARNING"]


async def test_lines_tell_tenants_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = FailureLog()
    refs = [log.noted(LOST, 1, "digits", tenant=tenant).metadata["log_ref"] for tenant in ("acme", "acme", "other", "")]
    log.close()
    assert refs[0] == refs[1]
    assert len(set(refs)) == 3
    (line,) = [each for each in caplog.messages if refs[0] in each and "calls failed" in each and "more" not in each]
    assert "tenant=acme" in line
    (without,) = [each for each in caplog.messages if refs[3] in each]
    assert "tenant" not in without
