"""The log of requests that fail: each id is in it, and a storm of failures is a few lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingress_service.core.problems import Problem
from ingress_service.shell import request_log
from ingress_service.shell.request_log import MAX_LINES, FailedRequests
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

REFUSED = Problem(status=404, reason="ROUTE_NOT_FOUND", detail="hush")
FAILED = Problem(status=500, reason="HANDLER_ERROR", detail="hush", executed="yes", log_ref="theirs")


async def test_what_has_no_id_gets_one_and_what_has_one_keeps_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = FailedRequests()
    refused, failed = log.noted(REFUSED, "_none"), log.noted(FAILED, "/sum", "abc")
    log.close()
    assert failed is FAILED
    assert replace(refused, log_ref="") == REFUSED
    first, second = caplog.messages
    assert refused.log_ref in first
    for fact in ("log_ref=theirs", "route=/sum", "trace_id=abc", "status=500", "executed=yes"):
        assert fact in second
    assert "hush" not in caplog.text, "the text may be of a handler"


async def test_failures_that_are_alike_share_an_id_and_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "WINDOW_S", 0.01)
    caplog.set_level("INFO")
    log = FailedRequests()
    assert len({log.noted(REFUSED, "_none").log_ref for _ in range(1000)}) == 1
    assert len(caplog.messages) == 1
    await wait_until(lambda: len(caplog.messages) == 2, what="the end of the window")
    assert "requests=999" in caplog.messages[-1]


async def test_what_ran_and_what_did_not_have_ids_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = FailedRequests()
    ran, ran_not = (log.noted(replace(REFUSED, executed=executed), "/sum") for executed in ("yes", "no"))
    log.close()
    for failed, executed in ((ran, "yes"), (ran_not, "no")):
        (line,) = (it for it in caplog.messages if failed.log_ref in it)
        assert f"executed={executed}" in line


async def test_a_storm_is_a_few_lines_and_every_id_is_in_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = FailedRequests()
    refs = {log.noted(REFUSED, f"/route-{number}").log_ref for number in range(10_000)}
    assert log.noted(FAILED, "/sum") is FAILED
    log.close()
    assert len(caplog.messages) == MAX_LINES + 2
    assert all(ref in caplog.text for ref in refs)


async def test_who_took_a_request_back_knows_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = FailedRequests()
    log.noted(replace(REFUSED, status=499, reason="CANCELLED"), "/sum")
    log.close()
    assert not caplog.messages
