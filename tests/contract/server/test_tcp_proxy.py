"""The proxy of the fault tests: what passes, what is held, and what is dropped silently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.support.tcp_proxy import BOTH, HELD_BYTES, Direction, TcpProxy, tcp_proxy
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@dataclass
class Peer(asyncio.Protocol):
    """One end of a connection: what it got, and whether it knows that the other end is gone."""

    got: bytearray = field(default_factory=bytearray)
    transport: asyncio.Transport | None = None
    ended: bool = False
    lost: bool = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> bool:
        self.ended = True
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@dataclass
class World:
    proxy: TcpProxy
    servers: list[Peer]
    clients: list[Peer]

    async def connect(self) -> Peer:
        host, _, port = self.proxy.address.partition(":")
        _, client = await asyncio.get_running_loop().create_connection(Peer, host, int(port))
        self.clients.append(client)
        return client

    async def pair(self) -> tuple[Peer, Peer]:
        """A connection that has carried something each way."""
        before = len(self.servers)
        client = await self.connect()
        await wait_until(lambda: len(self.servers) > before and self.servers[-1].transport is not None)
        server = self.servers[-1]
        client.send(b"up ")
        server.send(b"down ")
        await wait_until(lambda: server.got == b"up " and client.got == b"down ")
        return client, server


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    servers: list[Peer] = []

    def accept() -> Peer:
        servers.append(Peer())
        return servers[-1]

    listener = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    try:
        async with tcp_proxy(f"{host}:{port}") as proxy:
            made = World(proxy, servers, [])
            try:
                yield made
            finally:
                for peer in [*made.clients, *servers]:
                    peer.close()
                await wait_until(lambda: all(peer.lost for peer in [*made.clients, *servers]))
    finally:
        listener.close()


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.name)
async def test_one_direction_is_stalled_and_then_all_of_it_comes(direction: Direction) -> None:
    async with world() as it:
        client, server = await it.pair()
        it.proxy.stall(frozenset({direction}))
        client.send(b"from the client")
        server.send(b"from the server")
        free, stalled = (server, client) if direction is Direction.DOWN else (client, server)
        await wait_until(lambda: len(free.got) > len(b"down "), what="the other direction passes")
        await wait_until(lambda: it.proxy.held_bytes == len(b"from the client"))
        assert len(stalled.got) <= len(b"down ")
        it.proxy.heal()
        await wait_until(lambda: server.got == b"up from the client" and client.got == b"down from the server")


async def test_nobody_hears_of_an_end_during_a_stall() -> None:
    async with world() as it:
        client, server = await it.pair()
        it.proxy.stall()
        client.send(b"last words")
        await wait_until(lambda: it.proxy.held_bytes == len(b"last words"))
        client.close()
        await wait_until(lambda: client.lost)
        server.send(b"who is there?")
        await wait_until(lambda: it.proxy.held_bytes > len(b"last words"))
        assert not server.ended
        assert not server.lost
        it.proxy.heal()
        await wait_until(lambda: server.lost or server.ended)
        assert server.got == b"up last words"


async def test_who_connects_during_a_stall_gets_nowhere_until_it_is_over() -> None:
    async with world() as it:
        it.proxy.stall(BOTH)
        client = await it.connect()
        client.send(b"hello")
        await wait_until(lambda: it.proxy.held_bytes == len(b"hello"))
        assert it.servers == []
        it.proxy.heal()
        await wait_until(lambda: it.servers and it.servers[0].got == b"hello")


async def test_a_cut_resets_and_turns_away() -> None:
    async with world() as it:
        client, server = await it.pair()
        it.proxy.cut()
        await wait_until(lambda: client.lost and server.lost)
        late = await it.connect()
        await wait_until(lambda: late.lost)
        assert it.proxy.refused == 2
        it.proxy.heal()
        await it.pair()


async def test_a_delay_keeps_order() -> None:
    async with world() as it:
        client, server = await it.pair()
        loop = asyncio.get_running_loop()
        it.proxy.delay(0.1)
        began = loop.time()
        for number in range(10):
            client.send(f"{number} ".encode())
        await wait_until(lambda: server.got == b"up 0 1 2 3 4 5 6 7 8 9 ")
        assert loop.time() - began >= 0.1


async def test_half_closed_connections_go_on() -> None:
    async with world() as it:
        client, server = await it.pair()
        assert client.transport is not None
        client.transport.write_eof()
        await wait_until(lambda: server.ended)
        server.send(b"still there")
        await wait_until(lambda: client.got == b"down still there")


async def test_what_is_held_is_bounded_and_complete() -> None:
    async with world() as it:
        client, server = await it.pair()
        it.proxy.stall(frozenset({Direction.UP}))
        data = bytes(range(256)) * (HELD_BYTES // 16)
        client.send(data)
        await wait_until(lambda: it.proxy.held_bytes > HELD_BYTES)
        assert it.proxy.held_bytes < 2 * HELD_BYTES
        it.proxy.heal()
        await wait_until(lambda: len(server.got) == len(b"up ") + len(data), timeout=20)
        assert server.got == b"up " + data
