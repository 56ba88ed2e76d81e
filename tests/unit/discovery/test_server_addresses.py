"""Names are resolved while it runs: by an injected lookup, by a DNS server on loopback, and by this system."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any

import dns.rcode
import pytest

from slotmesh.discovery import resolved_names
from slotmesh.discovery.targets import DnsName
from slotmesh.transport import name_lookups
from slotmesh.transport.name_lookups import LookupFailed, NameLookups
from slotmesh.transport.server_addresses import ServerAddresses
from tests.support.fakes.name_server import NameServer
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio


class Records:
    """An injected lookup."""

    def __init__(self, *addresses: str) -> None:
        self.found: Sequence[str] | BaseException = addresses
        self.lookups = 0

    async def __call__(self, name: DnsName) -> Sequence[str]:
        self.lookups += 1
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolved_names, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(resolved_names, "LAST_PAUSE_S", 0.004)
    monkeypatch.setattr(resolved_names, "REFRESH_S", 0.02)


async def test_addresses_are_known_at_once_and_nothing_runs() -> None:
    async with ServerAddresses("b:1,a:2") as servers:
        assert servers.known == await servers.first(0) == ("b:1", "a:2")
        servers.request()
        assert not servers.are_resolved
        assert len(asyncio.all_tasks()) == 1


async def test_a_name_is_followed() -> None:
    records, changes = Records("10.0.0.1"), []
    async with ServerAddresses(["dns:///routers:70", "fixed:1"], lookup=records) as servers:
        end = servers.listen(lambda: changes.append(servers.known))
        assert servers.known == ("fixed:1",)
        await wait_until(lambda: "10.0.0.1:70" in servers.known)
        records.found = ["10.0.0.2", "10.0.0.3"]
        await wait_until(lambda: servers.known == ("10.0.0.2:70", "10.0.0.3:70", "fixed:1"))
        end()
        records.found = ["10.0.0.4"]
        await wait_until(lambda: "10.0.0.4:70" in servers.known)
    assert changes == [("10.0.0.1:70", "fixed:1"), ("10.0.0.2:70", "10.0.0.3:70", "fixed:1")]
    lookups = records.lookups
    await asyncio.sleep(0)
    assert records.lookups == lookups
    assert len(asyncio.all_tasks()) == 1, "nothing is left"


@pytest.mark.parametrize("found", [LookupFailed("away"), [], RuntimeError("a bug")])
async def test_a_lookup_that_fails_or_finds_nothing_changes_nothing(found: Any) -> None:
    records = Records("10.0.0.1")
    async with ServerAddresses("dns:///routers:70", lookup=records) as servers:
        assert await servers.first(10) == ("10.0.0.1:70",)
        records.found, before = found, records.lookups
        await wait_until(lambda: records.lookups > before + 3)
        assert servers.known == ("10.0.0.1:70",)
        assert servers.problem.startswith("dns:///routers:70 does not resolve: ")
        records.found = ["10.0.0.2"]
        await wait_until(lambda: servers.known == ("10.0.0.2:70",))
        assert not servers.problem


async def test_waiting_for_the_first_address_has_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    records = Records()
    records.found = LookupFailed("no such name")
    with caplog.at_level(logging.WARNING):
        async with ServerAddresses("dns:///routers:70", lookup=records) as servers:
            assert await servers.first(0.02) == ()
            await wait_until(lambda: records.lookups > 3)
            records.found = ["10.0.0.1"]
            assert await servers.first(10) == ("10.0.0.1:70",)
    (logged,) = caplog.records
    assert "no such name" in logged.getMessage(), "one line, not one a lookup"


async def test_a_request_resolves_before_the_next_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolved_names, "REFRESH_S", 3600.0)
    records = Records("10.0.0.1")
    async with ServerAddresses("dns:///routers:70", lookup=records) as servers:
        await servers.first(10)
        records.found = ["10.0.0.2"]
        servers.request()
        await wait_until(lambda: servers.known == ("10.0.0.2:70",))


async def test_a_name_is_resolved_after_a_close_that_gave_up_its_lookup() -> None:
    """The task that keeps up a member's stream is run again after an error that no one expects."""
    records = Records("10.0.0.1")
    never = asyncio.Event()

    async def lookup(name: DnsName) -> Sequence[str]:
        if not records.lookups:
            records.lookups += 1
            await never.wait()
        return await records(name)

    servers = ServerAddresses("dns:///routers:70", lookup=lookup)
    assert await servers.first(0.01) == ()
    await servers.aclose()
    async with servers:
        assert await servers.first(10) == ("10.0.0.1:70",)


async def test_a_listener_that_fails_ends_neither_the_resolution_nor_other_listeners() -> None:
    records, changes = Records("10.0.0.1"), []
    async with ServerAddresses("dns:///routers:70", lookup=records) as servers:
        servers.listen(lambda: 1 / 0)
        servers.listen(lambda: changes.append(servers.known))
        await servers.first(10)
        records.found = ["10.0.0.2"]
        await wait_until(lambda: changes[-1:] == [("10.0.0.2:70",)])


async def test_a_dns_server_of_its_own_is_asked() -> None:
    async with NameServer() as names:
        names.records["routers.mesh.svc"] = ["127.0.0.2", "127.0.0.3"]
        async with ServerAddresses(names.target("routers.mesh.svc", 70)) as servers:
            assert await servers.first(10) == ("127.0.0.2:70", "127.0.0.3:70")
            del names.records["routers.mesh.svc"]
            await wait_until(lambda: servers.problem)
            assert "does not exist" in servers.problem
            assert len(servers.known) == 2


async def test_a_silent_dns_server_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_lookups, "LOOKUP_S", 0.05)
    async with NameServer() as names:
        names.silent = True
        host, _, port = names.address.rpartition(":")
        with pytest.raises(LookupFailed):
            await NameLookups()(DnsName("a", 70, (host, int(port))))


@pytest.mark.parametrize("of_v6", [None, dns.rcode.SERVFAIL, dns.rcode.NXDOMAIN, dns.rcode.REFUSED])
async def test_a_dns_server_that_knows_no_ipv6_hides_no_other_address(
    of_v6: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_lookups, "LOOKUP_S", 2.0)
    async with NameServer() as names:
        names.records, names.of_v6 = {"a": ["127.0.0.2"], "empty": []}, of_v6
        host, _, port = names.address.rpartition(":")
        assert await NameLookups()(DnsName("a", 70, (host, int(port)))) == ["127.0.0.2"]
        with pytest.raises(LookupFailed):
            await NameLookups()(DnsName("empty", 70, (host, int(port))))


async def test_this_system_resolves() -> None:
    assert "127.0.0.1" in await NameLookups()(DnsName("localhost", 70))
    for host in ("no-such-name.invalid", "a..b", "x" * 64):
        with pytest.raises(LookupFailed):
            await NameLookups()(DnsName(host, 70))


async def test_a_system_that_does_not_answer_holds_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = [], threading.Event()

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        answer.wait(30)
        return [(0, 0, 0, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(name_lookups, "LOOKUP_S", 0.01)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    lookups, name = NameLookups(), DnsName("slow", 70)
    try:
        for _ in range(3):
            with pytest.raises(LookupFailed, match=r"no answer within 0\.01 s"):
                await lookups(name)
        assert asked == ["slow"]
    finally:
        answer.set()
    monkeypatch.setattr(name_lookups, "LOOKUP_S", 10.0)
    assert await within(lookups(name), "the late answer, or another one") == ["10.0.0.1"]
