"""What a controller keeps of members, watchers and changes is given back on every way out, not only on the usual one.

Each row is a way in which something ends; afterwards all that is counted is what it was before it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import pytest

from controller_service.core.event_log import EventKind, Notice
from controller_service.shell.events import EventFeed
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import Controlled, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio

MESH: Final = """
backends:
  v1: {handler: "app:One"}
  v2: {handler: "app:Two"}
endpoints:
  digits: {traffic: {v1: 0.5, v2: 0.5}, shadows: {v2: 0.5}}
  faces: {traffic: {v2: 1.0}}
"""


def held(mesh: Controlled) -> dict[str, int]:
    """All that is kept for as long as somebody is there."""
    controller = mesh.controller
    return {
        "watchers of events": len(controller.feed._watchers),
        "streams of routers": len(controller.routers._streams),
        "reports of routers": len(controller.routers.loads),
        "ends of streams of routers": len(controller.routers._ended),
        "listed routers": len(controller.state.observed.routers),
        "links of replicas": len(controller.replicas._links),
        "calls that replicas have ended": len(controller.replicas.ended_calls),
        "those that wait for tables": len(controller.board._listeners),
        "those that wait for leaders": len(controller.leadership._listeners),
        "bytes of tables before a hello": controller.routers._hellos._reading,
    }


async def given_back(mesh: Controlled, before: dict[str, int]) -> None:
    await wait_until(lambda: held(mesh) == before, timeout=20.0, what=f"all is as before: {before}")


# --- members ----------------------------------------------------------------------------------------------------------


async def says_goodbye(member: FakeRouter | FakeReplica) -> None:
    await member.say_goodbye()


async def is_cut(member: FakeRouter | FakeReplica) -> None:
    await member.cut()


async def sends_nonsense(member: FakeRouter | FakeReplica) -> None:
    await member.send(member._hello())  # a second one
    await wait_until(lambda: member.is_ended, what="the end of a stream that says hello twice")


async def attaches_again_and_leaves(member: FakeRouter | FakeReplica) -> None:
    await member.cut()
    await member.attach()
    await member.say_goodbye()


ENDS: Final[dict[str, Callable[[Any], Awaitable[None]]]] = {
    "says goodbye": says_goodbye,
    "is cut": is_cut,
    "sends nonsense": sends_nonsense,
    "attaches again, and leaves": attaches_again_and_leaves,
}


@pytest.mark.parametrize("end", ENDS)
async def test_of_routers_that_have_left_nothing_stays(end: str) -> None:
    async with running_controller(lease_s=3.0) as mesh:
        await mesh.apply(MESH)
        before = held(mesh)
        routers = [FakeRouter(mesh.channel, f"r{number}", f"127.0.0.1:{7_100 + number}") for number in range(3)]
        for router in routers:
            await router.attach()
            await router.wait_for(lambda _: True, "a table")
            await router.acknowledge(loads=[mesh_pb2.BackendLoad(backend="v1")])
        assert held(mesh)["streams of routers"] == 3
        for router in routers:
            await ENDS[end](router)
        await given_back(mesh, before)
        for router in routers:
            await router.cut()


@pytest.mark.parametrize("end", ENDS)
async def test_of_replicas_that_have_left_nothing_stays(end: str) -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        before = held(mesh)
        replicas = [FakeReplica(mesh.channel, f"v{1 + number % 2}", f"a{number}") for number in range(3)]
        for replica in replicas:
            await replica.attach()
            await replica.report("READY")
        await wait_until(lambda: held(mesh)["calls that replicas have ended"] == 3, what="three reports")
        for replica in replicas:
            await ENDS[end](replica)
        await given_back(mesh, before)
        for replica in replicas:
            await replica.cut()


async def refused_hello(mesh: Controlled) -> None:
    router = FakeRouter(mesh.channel, "", "nowhere")
    await router.attach()
    await wait_until(lambda: router.is_ended, what="the refusal of a hello without an id")
    await router.cut()


async def half_closed(mesh: Controlled) -> None:
    router = FakeRouter(mesh.channel, "r")
    call = router.stub.AttachRouter()
    await call.write(wire.AttachRouterRequest(table_part=part()))
    await call.done_writing()
    await within(call.code(), "the end of a stream without a hello")


async def cancelled_amid_its_table(mesh: Controlled) -> None:
    call = FakeRouter(mesh.channel, "r").stub.AttachRouter()
    await call.write(wire.AttachRouterRequest(table_part=part()))
    await wait_until(lambda: held(mesh)["bytes of tables before a hello"] > 0, what="the part of a table")
    call.cancel()


async def too_many_parts(mesh: Controlled) -> None:
    router = FakeRouter(mesh.channel, "r")
    router.brings_parts = [part() for _ in range(6)]
    await router.attach()
    await wait_until(lambda: router.is_ended, what="the refusal of too many parts")
    await router.cut()


def part() -> wire.TablePart:
    return wire.TablePart(table=wire.RoutingTable(generation="2" * 32, revision=7), is_first=True)


BEFORE_HELLO: Final = (refused_hello, half_closed, cancelled_amid_its_table, too_many_parts)


@pytest.mark.parametrize("end", BEFORE_HELLO, ids=lambda it: it.__name__)
async def test_of_streams_that_end_before_their_hello_nothing_stays(end: Callable[[Controlled], Any]) -> None:
    async with running_controller(max_router_table_parts=5) as mesh:
        await mesh.apply(MESH)
        before = held(mesh)
        for _ in range(3):
            await end(mesh)
        await given_back(mesh, before)


def settings(name: str, value: int) -> dict[str, Any]:
    return {name: value}


@pytest.mark.parametrize("name", ["max_router_table_size", "max_router_tables_size", "max_router_table_parts"])
async def test_a_table_of_exactly_the_bound_is_taken_and_of_one_more_refused(name: str) -> None:
    table = wire.RoutingTable(endpoints=[wire.EndpointRoute(name="e" * 200)])
    parts = [part(), *(wire.TablePart(table=table),) * 3, wire.TablePart(table=table, is_last=True)]
    bound = len(parts) if name == "max_router_table_parts" else sum(each.ByteSize() for each in parts)
    async with running_controller(**settings(name, bound)) as mesh:
        router = FakeRouter(mesh.channel, "r")
        router.brings_parts = parts
        async with router:
            await wait_until(lambda: "r" in mesh.controller.state.observed.routers, what=f"a router within {name}")
            assert not router.is_ended
    async with running_controller(**settings(name, bound - 1)) as mesh:
        refused = FakeRouter(mesh.channel, "r")
        refused.brings_parts = parts
        async with refused:
            await wait_until(lambda: refused.is_ended, what=f"the refusal by {name}")
            assert name in str(refused.ended)


# --- watchers ---------------------------------------------------------------------------------------------------------


async def watched_until_newest(mesh: Controlled) -> None:
    async for _ in mesh.operator.WatchEvents(pb.WatchEventsRequest(from_oldest=True, until_newest=True)):
        pass


async def cancelled_watch(mesh: Controlled) -> None:
    watching = mesh.operator.WatchEvents(pb.WatchEventsRequest(from_oldest=True))
    await watching.read()
    watching.cancel()


async def late_watch(mesh: Controlled) -> None:
    watching = mesh.operator.WatchEvents(pb.WatchEventsRequest(), timeout=0.2)
    with pytest.raises(grpc.aio.AioRpcError):
        await watching.read()


async def refused_watch(mesh: Controlled) -> None:
    watching = mesh.operator.WatchEvents(pb.WatchEventsRequest(after="none"))
    with pytest.raises(grpc.aio.AioRpcError):
        await watching.read()


WATCHES: Final = (watched_until_newest, cancelled_watch, late_watch, refused_watch)


@pytest.mark.parametrize("end", WATCHES, ids=lambda it: it.__name__)
async def test_of_watchers_that_have_left_nothing_stays(end: Callable[[Controlled], Any]) -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        before = held(mesh)
        async with asyncio.timeout(30.0):
            await asyncio.gather(*(end(mesh) for _ in range(3)))
        await given_back(mesh, before)
        mesh.controller.state.publish(Notice(kind=EventKind.REPLICA_READY, subject="s", message="m"))


@pytest.mark.parametrize("error", [asyncio.CancelledError, ValueError, GeneratorExit])
async def test_a_watcher_ends_with_its_block_whatever_ends_that(error: type[BaseException]) -> None:
    feed = EventFeed("a")

    def fail() -> None:
        with feed.watch(), feed.watch(from_oldest=True):
            assert len(feed._watchers) == 2
            raise error

    with pytest.raises(error):
        fail()
    assert not feed._watchers


# --- changes that change nothing --------------------------------------------------------------------------------------

SAME: Final[dict[str, Callable[[Any], Awaitable[Any]]]] = {
    "ApplyBackend": lambda it: it.ApplyBackend(
        pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="v1", handler="app:One"))
    ),
    "ApplyEndpoint": lambda it: it.ApplyEndpoint(
        pb.ApplyEndpointRequest(
            endpoint=mesh_pb2.Endpoint(name="faces", traffic=mesh_pb2.TrafficPolicy(weights={"v2": 1.0}))
        )
    ),
    "SetTraffic": lambda it: it.SetTraffic(
        pb.SetTrafficRequest(
            endpoint="digits", traffic=mesh_pb2.TrafficPolicy(weights={"v2": 0.5, "v1": 0.5}, shadows={"v2": 0.5})
        )
    ),
    "dry run of another backend": lambda it: it.ApplyBackend(
        pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="v3", handler="app:Three"), validate_only=True)
    ),
    "a refused backend": lambda it: refused(
        it.ApplyBackend(pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="v3", handler="no handler")))
    ),
    "a refused deletion": lambda it: refused(it.DeleteBackend(pb.DeleteBackendRequest(name="v2"))),
    "a deletion of what is not there": lambda it: refused(it.DeleteEndpoint(pb.DeleteEndpointRequest(name="none"))),
    "a change of an older revision": lambda it: refused(
        it.DeleteEndpoint(pb.DeleteEndpointRequest(name="faces", expected_revision=10_000))
    ),
}


async def refused(rpc: Awaitable[Any]) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await rpc


async def the_same_mesh(mesh: Controlled) -> None:
    response = await mesh.apply(MESH)
    assert not [*response.created, *response.updated, *response.deleted]


@pytest.mark.parametrize("what", [*SAME, "ApplyMesh"])
async def test_what_changes_nothing_takes_no_revision_and_is_told_nowhere(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        controller = mesh.controller
        before, events = controller.store.read(), dict(controller.feed.counts)
        caplog.clear()
        for _ in range(2):
            await (SAME[what](mesh.operator) if what in SAME else the_same_mesh(mesh))
        after = controller.store.read()
        assert (after.configured_at, after.history) == (before.configured_at, before.history)
        assert after.revision == before.revision
        assert dict(controller.feed.counts) == events
        assert not [it for it in caplog.records if it.name == "slotmesh.audit" and "changed" in it.getMessage()]
