"""Which router a client uses of those that a name has: in turn, a few for rpcs, and none that leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from slotmesh.client.mesh import FollowingMesh
from slotmesh.client.routers import MAX_SPREAD, Routers
from slotmesh.client.search import Search
from slotmesh.discovery import resolved_names
from slotmesh.discovery.targets import DnsName
from slotmesh.runtime.channels import PLAIN_TEXT
from slotmesh.transport.server_addresses import ServerAddresses
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Records:
    """An injected lookup."""

    def __init__(self, count: int) -> None:
        self.hosts = [f"127.9.0.{number}" for number in range(count)]

    async def __call__(self, name: DnsName) -> Sequence[str]:
        return self.hosts


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolved_names, "REFRESH_S", 0.01)


@pytest.fixture
def records() -> Records:
    return Records(20)


@pytest_asyncio.fixture
async def servers(records: Records) -> AsyncIterator[ServerAddresses]:
    async with ServerAddresses("dns:///routers:70", lookup=records) as servers:
        await servers.first(10)
        yield servers


async def test_streams_begin_at_each_router_in_turn(servers: ServerAddresses) -> None:
    routers = Routers(servers)
    first = [routers.in_turn("")[0] for _ in range(40)]
    assert Counter(Counter(first).values()) == {2: 20}
    first = []
    for _ in range(20):
        first.append(routers.in_turn("")[0])
        routers.pick("")
    assert Counter(Counter(first).values()) == {1: 20}, "rpcs of their own have turns of their own"
    await routers.aclose()
    assert {*routers.in_turn("")} == {*servers.known}


async def test_each_client_has_an_order_of_its_own(servers: ServerAddresses) -> None:
    assert len({Routers(servers).in_turn("")[0] for _ in range(60)}) > 10


async def test_a_list_is_used_in_its_order(servers: ServerAddresses) -> None:
    routers = Routers(["b:1", "a:1"])
    assert [routers.in_turn("")[0] for _ in range(3)] == ["b:1"] * 3
    assert not routers.is_spread


async def test_a_router_that_leaves_is_the_last_to_be_tried(
    servers: ServerAddresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    routers = Routers(servers)
    leaving = routers.in_turn("")[0]
    routers.leaves(leaving, [])
    for _ in range(25):
        assert routers.in_turn("")[-1] == leaving
        assert routers.in_turn("127.9.0.99:70")[-2] == leaving
    monkeypatch.setattr("slotmesh.client.routers.LEAVING_S", -1.0)
    routers.leaves(leaving, [])
    assert leaving in {routers.in_turn("")[0] for _ in range(20)}, "it may have been started again"


async def test_routers_of_the_name_go_before_those_that_routers_have_named(servers: ServerAddresses) -> None:
    routers = Routers(servers)
    routers.learn(["127.8.0.1:70", "127.8.0.2:70"])
    for _ in range(5):
        assert {*routers.others("127.9.0.1:70")[-2:]} == {"127.8.0.1:70", "127.8.0.2:70"}


async def test_few_of_many_routers_get_rpcs_and_few_change_with_the_list(
    servers: ServerAddresses, records: Records
) -> None:
    routers = Routers(servers)
    before = set(routers._order(MAX_SPREAD, 3))
    assert len(before) == MAX_SPREAD
    assert {*routers._order(MAX_SPREAD, 3)} == before
    records.hosts = records.hosts[1:]
    await wait_until(lambda: len(servers.known) == 19)
    assert len(before - {*routers._order(MAX_SPREAD, 3)}) <= 1


async def test_without_a_connected_router_there_is_none_to_pick(servers: ServerAddresses) -> None:
    routers = Routers(servers)
    assert routers.pick("") == ""
    assert routers.pick("127.9.0.99:70") == "", "it is not known any more"
    await routers.aclose()


async def test_channels_to_routers_that_are_known_no_more_are_closed(
    servers: ServerAddresses, records: Records
) -> None:
    routers = Routers(servers)
    for address in servers.known:
        routers.channel(address)
    assert len(routers._channels) == 20
    routers.learn(["127.9.0.0:70"])
    records.hosts = ["127.9.0.7", "127.9.0.8", "127.9.0.9"]
    await wait_until(lambda: len(routers._channels) == 4)
    assert {*routers._channels} == {*servers.known, "127.9.0.0:70"}
    await routers.aclose()


@pytest.mark.parametrize("how", ["learn", "follow"])
async def test_a_client_of_a_list_keeps_no_channels_to_all_routers_that_there_ever_were(how: str) -> None:
    """Each rolling update of the routers gives them other addresses."""
    routers = Routers(["127.9.9.9:70"])
    for number in range(20):
        named = [f"127.9.0.{number}:70"]
        (routers.learn if how == "learn" else routers.follow)(named)
        for address in routers.in_turn(""):
            routers.stub(address)
    assert len(routers._channels) <= 2
    await routers.aclose()


async def test_a_search_begins_when_the_name_resolves(records: Records) -> None:
    found, records.hosts = records.hosts, []
    async with ServerAddresses("dns:///routers:70", lookup=records) as servers:
        routers = Routers(servers)
        search = Search(routers, 10, "")
        assert not await routers.found(0)
        failure = routers.unreachable(10)
        assert "no router was found within 10 s: dns:///routers:70 does not resolve" in failure.message
        records.hosts = found
        assert await routers.found(10)
        assert search.take_pause_s("") == 0
        assert search.take() in servers.known


async def test_the_routers_of_a_handlers_mesh_are_used_in_turn() -> None:
    listed = ["a:1", "b:1", "c:1"]
    mesh = FollowingMesh(listed, PLAIN_TEXT)
    assert Counter(mesh._routers.in_turn("")[0] for _ in range(6)) == dict.fromkeys(listed, 2)
    mesh.follow(["d:1", "e:1"])
    assert Counter(mesh._routers.in_turn("")[0] for _ in range(6)) == {"d:1": 3, "e:1": 3}
    await mesh.aclose()
