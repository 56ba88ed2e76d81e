"""Callers that are found for a request stay while it lasts, however many others come."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ingress_service.shell.callers import HttpCallers
from slotmesh.transport.server_addresses import ServerAddresses
from tests.support.certificates import Authority

pytestmark = pytest.mark.asyncio


async def test_who_is_in_use_makes_no_room_for_others(tmp_path: Path) -> None:
    tls = Authority(tmp_path).source("ingress")
    callers = HttpCallers(ServerAddresses("127.0.0.1:1"), tls, most=1, anonymous=False, connect_timeout_s=1.0)
    first = callers.taken("first")
    assert first is not None
    assert callers.known("first") is callers.taken("first") is first
    first.in_use += 1
    assert callers.taken("second") is None
    assert callers.known("second") is None
    first.in_use -= 1
    assert callers.taken("second") is not first
    assert callers.known("first") is None
    await callers.aclose(0)
    assert not [it for it in asyncio.all_tasks() if it is not asyncio.current_task()]


async def test_a_token_that_is_refused_has_no_place_and_ends_when_its_requests_have(tmp_path: Path) -> None:
    tls = Authority(tmp_path).source("ingress")
    callers = HttpCallers(ServerAddresses("127.0.0.1:1"), tls, most=1, anonymous=False, connect_timeout_s=1.0)
    first = callers.taken("first")
    assert first is not None
    first.in_use += 1
    callers.refused(first)
    assert len(callers) == 0
    second = callers.taken("second")
    assert second is not None
    first.in_use -= 1
    await callers.aclose(0)
    assert not [it for it in asyncio.all_tasks() if it is not asyncio.current_task()]
