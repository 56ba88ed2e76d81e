"""Connections whose server is far away: its first bytes come later than on the machine itself, and are waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

import slotmesh
from slotmesh.cli.connection import Peer
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.channels import open_channel
from tests.support.fakes.router import FakeRouter
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

pytestmark = pytest.mark.asyncio

WAY_S = 0.15
"""Each way: the first bytes of a server come after twice that."""


def attempts(proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Connections that were begun."""
    begun: list[object] = []
    accepted = proxy.accepted

    def note(connection: Any) -> None:
        begun.append(connection)
        accepted(connection)

    monkeypatch.setattr(proxy, "accepted", note)
    return begun


async def test_a_channel_connects_to_a_server_that_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeRouter() as router, tcp_proxy(router.address) as proxy:
        begun = attempts(proxy, monkeypatch)
        proxy.delay(2 * WAY_S)
        async with open_channel(proxy.address) as channel:
            await asyncio.wait_for(channel.channel_ready(), 10)
            assert len(begun) == 1, "the first attempt is given its time"


async def test_a_client_calls_a_router_that_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeRouter() as router, tcp_proxy(router.address) as proxy:
        begun = attempts(proxy, monkeypatch)
        proxy.delay(WAY_S)
        async with slotmesh.connect(proxy.address) as mesh:
            echo = mesh.endpoint("e").options(content_type=OCTET_STREAM).method("echo")
            assert await asyncio.wait_for(echo(b"far"), 10) == b"far"
            assert len(begun) == 1


async def test_commands_find_a_server_that_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeRouter() as router, tcp_proxy(router.address) as proxy:
        begun = attempts(proxy, monkeypatch)
        proxy.delay(WAY_S)
        async with Peer("router", proxy.address).connect() as channel:
            assert channel.get_state() is grpc.ChannelConnectivity.READY
            assert len(begun) == 1
