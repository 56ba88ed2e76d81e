"""A whole mesh by mutual TLS: every connection is made by who has a certificate, to who has the right one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh import connect, connect_sync
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.security.tls import TlsSource
from slotmesh.server.server import GrpcServer
from slotmesh.transport.current_channel import CurrentChannel
from tests.support.certificates import Authority
from tests.support.tcp_proxy import tcp_proxy
from tests.support.tls_mesh import ENDPOINT, TlsMesh, tls_mesh
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[TlsMesh]:
    async with tls_mesh(Authority(tmp_path), routers=2) as running:
        yield running


async def test_all_kinds_of_calls(mesh: TlsMesh) -> None:
    async with mesh.client() as client:
        words = client.endpoint(ENDPOINT)
        assert await words.greet("Ada") == "hello, Ada"
        assert await words.greet.unary("Ada") == "hello, Ada"
        assert [value async for value in words.stream.stream(3)] == [0, 1, 2]
        assert [value async for value in words.stream.unary_stream(3)] == [0, 1, 2]
        async with words.reserve() as slot:
            assert await slot.greet("Bob") == "hello, Bob"
        async with words.direct(slots=1) as lanes:
            assert await lanes.greet("Eve") == "hello, Eve"
        assert ENDPOINT in await client.endpoints()


async def test_calls_of_threads(mesh: TlsMesh) -> None:
    def call() -> tuple[str, str]:
        with connect_sync(mesh.routers[0], tls=mesh.tls()) as client:
            words = client.endpoint(ENDPOINT)
            with words.direct(slots=1) as lanes:
                return words.greet("Ada"), lanes.greet("Eve")

    assert await asyncio.to_thread(call) == ("hello, Ada", "hello, Eve")


async def test_a_session_goes_on_at_an_alternate(mesh: TlsMesh) -> None:
    """The client was given one router, hears of the other one, and checks its role there."""
    async with tcp_proxy(mesh.routers[0]) as proxy, connect(proxy.address, tls=mesh.tls()) as client:
        words = client.endpoint(ENDPOINT)
        waiting = words.wait(b"x")
        await wait_until(lambda: mesh.handler.started, what="the call runs")
        proxy.cut()
        mesh.handler.open_all()
        assert await waiting == b"x"


async def test_certificates_are_replaced_under_load(mesh: TlsMesh) -> None:
    """What reconnects shows the new certificate; what is connected goes on."""
    async with tcp_proxy(mesh.routers[0]) as proxy, connect(proxy.address, tls=mesh.tls()) as client:
        words = client.endpoint(ENDPOINT)
        for _ in range(10):
            mesh.authority.whole_mesh()
            calls = [words.greet("Ada") for _ in range(20)]
            calls += [asyncio.ensure_future(words.greet.unary("Ada")) for _ in range(5)]
            assert set(await asyncio.gather(*calls)) == {"hello, Ada"}


async def test_the_mesh_goes_to_another_authority(tmp_path: Path) -> None:
    """First all trust both, then all have certificates of the new one, then nobody trusts the old one."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    async with tls_mesh(old) as mesh, mesh.client() as client:
        words = client.endpoint(ENDPOINT)
        assert await words.greet("Ada") == "hello, Ada"
        servers: tuple[Any, ...] = (mesh.controller.server, mesh.replica.server)
        cuts = [each.edge.streams.cut for each in servers]

        async def all_have_read(version: int) -> None:
            await wait_until(lambda: all(each._tls and each._tls.version >= version for each in servers))

        replaced(old.ca, old.ca.read_bytes() + new.ca.read_bytes())
        await all_have_read(2)
        assert await words.greet("Ada") == "hello, Ada"
        for path in sorted(new.whole_mesh().iterdir(), key=lambda it: it.suffix, reverse=True):
            if path.name != new.ca.name:
                replaced(old.directory / path.name, path.read_bytes())
        await all_have_read(3)
        assert await words.greet("Ada") == "hello, Ada"
        assert not any(cuts), "both are trusted"
        replaced(old.ca, new.ca.read_bytes())
        await all_have_read(4)
        await wait_until(lambda: all(cuts), what="streams by certificates of the old one have ended")
        async with asyncio.timeout(10):
            assert await words.options(idempotent=True).greet("Ada") == "hello, Ada"


def replaced(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.touch(mode=0o600)
    fresh.write_bytes(content)
    fresh.replace(path)


async def test_a_new_channel_for_a_new_certificate(tmp_path: Path) -> None:
    """The stream that lives stays on the old one, which a new authority would refuse."""
    authority, clock = Authority(tmp_path), [0.0]
    server = GrpcServer("router", tls=authority.source("router"))
    await server.start()
    try:
        source = TlsSource(authority.issue("operator", "ops"), now=lambda: clock[0])
        channel = CurrentChannel(Dialer(source), server.address, Role.ROUTER)
        first = channel.get()
        health: Any = health_pb2_grpc.HealthStub(first)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert await watch.read()
        assert channel.is_connected
        assert channel.get() is first
        authority.issue("operator", "ops")
        clock[0] += 10
        await wait_until(lambda: channel.get() is not first, what="a new channel")
        assert not channel.is_connected
        server.set_serving()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        newest: Any = health_pb2_grpc.HealthStub(channel.get())
        reply = await newest.Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        await server.stop()
        shut_down = grpc.ChannelConnectivity.SHUTDOWN
        await wait_until(lambda: first.get_state() is shut_down, what="the old channel closed: nothing uses it")
        assert channel.get().get_state() is not shut_down
        await channel.aclose()
    finally:
        await server.stop()
