"""Routers and ingresses whose controller is away: they go on trying, and say so ever less often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from ingress_service.shell.route_watch import RouteWatch
from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.runtime.backoff import Backoff
from slotmesh.runtime.channels import PLAIN_TEXT
from slotmesh.transport.server_addresses import ServerAddresses
from tests.support.fakes.router import FakeRouter
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


Trying = Callable[[str], AbstractAsyncContextManager[object]]


def router(address: str) -> AbstractAsyncContextManager[object]:
    flags: dict[str, Any] = {"controller": address, "router_id": "router-1", "port": 0, "metrics_port": 0}
    return serve(RouterSettings(host="127.0.0.1", **flags))


@asynccontextmanager
async def ingress(address: str) -> AsyncIterator[object]:
    watching = asyncio.ensure_future(RouteWatch(ServerAddresses(address), PLAIN_TEXT, lambda _: None).run())
    try:
        yield watching
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("start", [router, ingress])
async def test_the_first_attempt_is_logged_and_few_of_the_others(
    start: Trying, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0

    def next_delay_s(_: Backoff) -> float:
        nonlocal attempts
        attempts += 1
        return 0.01

    monkeypatch.setattr(Backoff, "next_delay_s", next_delay_s)
    async with FakeRouter() as gone:
        address = gone.address
    with caplog.at_level(logging.WARNING):
        async with start(address):
            await wait_until(lambda: attempts >= 30, timeout=30)
    logged = [it.getMessage() for it in caplog.records]
    ended = [it for it in logged if "controller link ended" in it or "routes are not followed" in it]
    assert 1 <= len(ended) <= 6
    assert all("there is no routing table yet" in it or "there are none yet" in it for it in ended)
