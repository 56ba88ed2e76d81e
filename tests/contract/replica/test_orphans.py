"""A replica whose controller is gone: it says so at once, serves for its orphan time-out, then drains and ends."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from tests.contract.replica.test_membership import DRAINING, READY, at, controller
from tests.support.replicas import running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

AWAY = "no controller: this replica continues with its last configuration, and tries again"
NEVER_ATTACHED = "no controller: this replica has no configuration yet and serves no call, and tries again"


def warnings_of(caplog: pytest.LogCaptureFixture, text: str = AWAY) -> int:
    """How often it has warned that there is no controller."""
    return sum(record.levelno == logging.WARNING and text in record.getMessage() for record in caplog.records)


async def test_a_replica_without_a_controller_to_go_to_warns_at_once_and_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running_replica(controller="127.0.0.1:1", until_ready=False) as replica:
        await wait_until(lambda: warnings_of(caplog, NEVER_ATTACHED), what="the warning")
        link = replica.app.replica
        assert link.engine is None, "it has no configuration, and goes on waiting for one"
    assert warnings_of(caplog, NEVER_ATTACHED) == 1


async def test_an_orphan_serves_until_its_time_is_over_then_drains_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    async with controller({}) as (fake, server), at(server, orphan_timeout=timedelta(seconds=1)) as replica:
        await fake.attached()
        await server.stop()
        await wait_until(lambda: warnings_of(caplog), what="the warning")
        async with replica.router() as stream:
            await stream.send(stream.run([b"x"]))
            await stream.wait_answers(1)
        async with asyncio.timeout(20):
            assert await replica.task == 0
    assert any("no controller for too long: draining" in record.getMessage() for record in caplog.records)


async def test_an_orphan_that_finds_a_controller_again_stays(caplog: pytest.LogCaptureFixture) -> None:
    async with controller({}) as (first, server):
        port = int(server.address.rpartition(":")[2])
        async with at(server, orphan_timeout=timedelta(seconds=2)) as replica:
            await first.attached()
            ended = asyncio.ensure_future(replica.app.replica.stop_asked.wait())
            await server.stop()
            await wait_until(lambda: warnings_of(caplog), what="the warning")
            async with controller({}, port=port) as (second, _):
                attachment = await second.attached()
                # Longer than its time-out, by the reports that it sends every second.
                await wait_until(lambda: len(attachment.reports) >= 4, what="reports")
                assert not ended.done()
                assert {int(report.state) for report in attachment.reports} == {READY}
            ended.cancel()
            assert DRAINING not in first.attachments[0].states


async def test_a_replica_whose_controller_is_on_hold_is_no_orphan() -> None:
    async with controller({}) as (first, server):
        port = int(server.address.rpartition(":")[2])
        async with at(server, orphan_timeout=timedelta(seconds=2)) as replica:
            await first.attached()
            ended = asyncio.ensure_future(replica.app.replica.stop_asked.wait())
            await server.stop()
            async with controller(None, port=port) as (held, _):
                attachment = await held.attached()
                await attachment.hold()
                # Longer than its time-out, by the reports that it sends every second.
                await wait_until(lambda: len(attachment.reports) >= 5, what="reports")
                assert not ended.done()
                assert {int(report.state) for report in attachment.reports} == {READY}
            ended.cancel()
