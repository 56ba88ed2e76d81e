"""A balancer that the router does not have: another one is used instead, and status and logs show it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from router_service.app import serve
from router_service.config import RouterSettings
from tests.support.fakes.controller import FakeController, fake_controller, table
from tests.support.metrics import scraped
from tests.support.wait import wait_until

NEWER = "of_others"


@contextmanager
def warnings_of(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the router warns of balancers."""
    said: list[str] = []
    with caplog.at_level(logging.WARNING):
        yield said
    said += [each.getMessage() for each in caplog.records if "balancer" in each.getMessage()]


async def applied(controller: FakeController, revision: int, balancer: str) -> None:
    controller.push(table(revision, {}, balancer=balancer))
    await wait_until(lambda: controller.reports and controller.reports[-1].revision == revision, what="the table")


@pytest.mark.asyncio
async def test_an_unknown_balancer_is_warned_of_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_controller() as controller:
        settings = RouterSettings(port=0, metrics_port=0, controller=controller.address)
        async with serve(settings):
            await wait_until(lambda: bool(controller.hellos))
            address = controller.hellos[0].metrics_address
            with warnings_of(caplog) as said:
                await applied(controller, 1, NEWER)
                await applied(controller, 2, NEWER)
            (warning,) = said
            assert "backend=b" in warning
            assert f"balancer={NEWER}" in warning
            assert "stands_in=least_loaded" in warning
            assert (await scraped(address)).total("slotmesh_router_balancers_unknown") == 1
            await wait_until(lambda: list(controller.reports[-1].unknown_balancers) == [NEWER], what="the report")
            caplog.clear()
            with warnings_of(caplog) as said:
                await applied(controller, 3, "round_robin")
            assert not said
            assert (await scraped(address)).total("slotmesh_router_balancers_unknown") == 0
            await wait_until(lambda: not controller.reports[-1].unknown_balancers, what="the report")
            caplog.clear()
            with warnings_of(caplog) as said:
                await applied(controller, 4, NEWER)
            assert len(said) == 1
