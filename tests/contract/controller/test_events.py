"""WatchEvents over real gRPC: kinds, filters, cursors, and readers that are too slow."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from controller_service.core.event_log import EventKind, Notice
from slotmesh.v1 import controller_service_pb2 as pb
from tests.support.controllers import Controlled, running_controller, violations
from tests.support.fakes.members import FakeReplica

MESH = "backends: {v1: {handler: 'app:One'}}\nendpoints: {digits: {traffic: {v1: 1}}}"


def tell(mesh: Controlled, count: int, subject: str = "replica/a") -> None:
    for number in range(count):
        mesh.controller.state.publish(Notice(kind=EventKind.REPLICA_READY, subject=subject, message=str(number)))


def test_each_kind_has_its_name_on_the_wire() -> None:
    assert {kind.name: kind.value for kind in EventKind} == {
        name.removeprefix("EVENT_KIND_"): number for name, number in pb.EventKind.items() if number
    }


@pytest.mark.asyncio
async def test_watchers_hear_what_happens_from_now_on() -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        watching = mesh.operator.WatchEvents(pb.WatchEventsRequest())
        await watching.initial_metadata()
        async with FakeReplica(mesh.channel, "v1", "a") as a, asyncio.timeout(20.0):
            await a.report("READY")
            first = await watching.read()
            assert first.kind == pb.EVENT_KIND_REPLICA_ATTACHED
            assert (first.resource, first.missed) == ("replica/a", 0)
            assert first.time.ToSeconds() > 1_600_000_000
            while (await watching.read()).kind != pb.EVENT_KIND_REPLICA_READY:
                pass
        watching.cancel()


@pytest.mark.asyncio
async def test_a_watcher_goes_on_after_the_event_that_it_heard_last() -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        watching = mesh.operator.WatchEvents(pb.WatchEventsRequest(from_oldest=True))
        async with asyncio.timeout(20.0):
            kinds = {(first := await watching.read()).kind, (await watching.read()).kind}
        assert kinds == {pb.EVENT_KIND_BACKEND_CREATED, pb.EVENT_KIND_ENDPOINT_CREATED}
        watching.cancel()
        again = mesh.operator.WatchEvents(pb.WatchEventsRequest(after=first.cursor))
        async with asyncio.timeout(20.0):
            assert {first.kind, (await again.read()).kind} == kinds
        again.cancel()
        foreign = mesh.operator.WatchEvents(pb.WatchEventsRequest(after="0-1"))
        async with asyncio.timeout(20.0):
            assert (await foreign.read()).missed == -1
        foreign.cancel()


@pytest.mark.asyncio
async def test_only_what_is_wanted_is_heard() -> None:
    async with running_controller() as mesh:
        kinds = [pb.EVENT_KIND_BACKEND_CREATED, pb.EVENT_KIND_REPLICA_READY]
        request = pb.WatchEventsRequest(kinds=kinds, resource_prefix="replica/b")
        watching = mesh.operator.WatchEvents(request)
        await watching.initial_metadata()
        await mesh.apply(MESH)
        tell(mesh, 2, "replica/a")
        tell(mesh, 2, "replica/b1")
        async with asyncio.timeout(20.0):
            events = [await watching.read() for _ in range(2)]
        assert [(event.resource, event.message, event.missed) for event in events] == [
            ("replica/b1", "0", 0),
            ("replica/b1", "1", 0),
        ]
        watching.cancel()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.WatchEventsRequest(after="yesterday"), "after"),
        (pb.WatchEventsRequest(kinds=[999]), "kinds"),  # type: ignore[list-item]  # of a newer version
        (pb.WatchEventsRequest(resource_prefix="digits"), "resource_prefix"),
        (pb.WatchEventsRequest(resource_prefix="replicas/digits"), "resource_prefix"),
    ],
)
async def test_what_cannot_be_watched_is_refused(request_: pb.WatchEventsRequest, field: str) -> None:
    async with running_controller() as mesh:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await mesh.operator.WatchEvents(request_).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert list(violations(caught.value)) == [field]


@pytest.mark.asyncio
async def test_a_watcher_that_does_not_read_loses_the_oldest_events_and_knows_how_many() -> None:
    async with running_controller() as mesh:
        wanted = pb.WatchEventsRequest(kinds=[pb.EVENT_KIND_REPLICA_READY])
        watching = mesh.operator.WatchEvents(wanted)
        await watching.initial_metadata()
        tell(mesh, 5_000)  # in one go: the watcher's rpc has no turn meanwhile
        seen = missed = 0
        async with asyncio.timeout(10.0):
            while seen + missed < 5_000:
                event = await watching.read()
                seen, missed = seen + 1, missed + event.missed
        assert seen + missed == 5_000
        assert missed > 0
        watching.cancel()


@pytest.mark.asyncio
async def test_a_reader_of_what_is_kept_is_not_kept_waiting() -> None:
    async with running_controller() as mesh:
        tell(mesh, 3)
        async with asyncio.timeout(20.0):
            kept = [
                it async for it in mesh.operator.WatchEvents(pb.WatchEventsRequest(from_oldest=True, until_newest=True))
            ]
            later = pb.WatchEventsRequest(after=kept[1].cursor, until_newest=True)
            assert [it.message for it in kept] == ["0", "1", "2"]
            assert [it.message async for it in mesh.operator.WatchEvents(later)] == ["2"]
            other = pb.WatchEventsRequest(from_oldest=True, until_newest=True, resource_prefix="router/")
            assert [it async for it in mesh.operator.WatchEvents(other)] == []
            assert [it async for it in mesh.operator.WatchEvents(pb.WatchEventsRequest(until_newest=True))] == []
