"""Routing tables in parts: a router applies them as a whole or not at all; a controller sends and takes them."""

from __future__ import annotations

import grpc
import pytest

from controller_service.core.partition_owners import Incarnation, ownership_of
from controller_service.core.routing import AnnouncedTable, ListedEndpoint, Routes
from controller_service.shell.members.tables import TableBoard, TableFeed
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.internal.v1 import membership_service_pb2 as pb
from slotmesh.streams.limits import TABLE_PART_BYTES
from tests.contract.router.test_table_deltas import change, in_force
from tests.support.controllers import running_controller
from tests.support.fakes.controller import table
from tests.support.fakes.members import FakeRouter
from tests.support.router_bench import RouterBench, router_bench
from tests.support.tables import all_parts, owners_of
from tests.support.wait import wait_until


def parts_of(mesh: RouterBench, revision: int) -> list[pb.TablePart]:
    """A table in a part for each backend, assignment and endpoint."""
    whole = table(revision, {f"r{at}": each.address for at, each in enumerate(mesh.replicas)})
    (route,) = whole.endpoints
    first = pb.RoutingTable()
    first.CopyFrom(whole)
    del first.endpoints[:]
    del first.backends[:]
    del first.assignments[:]
    endpoints = [pb.EndpointRoute(name=name, traffic=route.traffic, assignment=1) for name in (route.name, "more")]
    parts = [
        pb.TablePart(table=first, is_first=True),
        pb.TablePart(table=pb.RoutingTable(backends=whole.backends)),
        pb.TablePart(table=pb.RoutingTable(assignments=whole.assignments)),
        *(pb.TablePart(table=pb.RoutingTable(endpoints=[each])) for each in endpoints),
    ]
    parts[-1].is_last = True
    return parts


@pytest.mark.asyncio
@pytest.mark.parametrize("arrived", range(5))
async def test_a_table_that_is_interrupted_at_any_part_changes_nothing(arrived: int) -> None:
    async with router_bench() as mesh:
        controller = mesh.controller
        newest, hellos = controller.reports[-1].revision, len(controller.hellos)
        parts = parts_of(mesh, newest + 1)
        controller.push_parts(*parts[:arrived])
        controller.forget()
        await wait_until(lambda: len(controller.hellos) > hellos, what="the router attaches again")
        assert controller.brought[-1].revision == newest
        assert [it.name for it in controller.brought[-1].endpoints] == ["echo"]
        # On the next stream they are taken, from the first one on.
        controller.push_parts(*parts)
        await in_force(controller, newest + 1)
        controller.forget()
        await wait_until(lambda: len(controller.hellos) > hellos + 1, what="the router attaches once more")
        brought = controller.brought[-1]
        assert [it.name for it in brought.endpoints] == ["echo", "more"]
        indexes = [list(owners_of(brought, name).partition_owners) for name in ("echo", "more")]
        assert indexes == 2 * [list(parts[2].table.assignments[0].partition_owners)]


@pytest.mark.asyncio
async def test_a_new_first_part_replaces_parts_without_a_last_one_and_lone_parts_are_left_out() -> None:
    async with router_bench() as mesh:
        controller = mesh.controller
        newest = controller.reports[-1].revision
        controller.push_parts(parts_of(mesh, newest + 5)[-1])  # without a first one
        controller.push_parts(*parts_of(mesh, newest + 1)[:3], *parts_of(mesh, newest + 2))
        await in_force(controller, newest + 2)
        assert newest + 1 not in {each.revision for each in controller.reports}


@pytest.mark.asyncio
async def test_a_delta_in_parts_applies_with_its_last_one() -> None:
    async with router_bench() as mesh:
        controller = mesh.controller
        newest = controller.reports[-1].revision
        first, last = (pb.TablePart(delta=change(newest, newest + 1)), pb.TablePart())
        first.is_first = last.is_last = True
        last.delta.endpoints.add(name="more").whole.name = "more"
        controller.push_parts(first, last)
        await in_force(controller, newest + 1)
        wrong = pb.TablePart(delta=change(newest, newest + 2), is_first=True, is_last=True)
        controller.push_parts(wrong)
        await wait_until(lambda: controller.requests, what="a request for the whole table")
        assert controller.requests[0].revision == newest + 1


def announced(endpoints: int) -> AnnouncedTable:
    """All of them have the same owners."""
    owners = [Incarnation(name, "1" * 32) for name in "ab"]
    ownership = ownership_of([owners[number % 2] for number in range(PARTITIONS)], range(10**12, 10**12 + PARTITIONS))
    listed = tuple(ListedEndpoint(name=f"e{it:05}", traffic=None, ownership=ownership) for it in range(endpoints))
    return AnnouncedTable(generation="g", revision=1, routes=Routes(endpoints=listed))


def test_what_endpoints_share_is_sent_once_in_small_parts() -> None:
    board = TableBoard()
    board.post(announced(7_000))
    sizes = [part.ByteSize() for part in all_parts(board.frames(None))]
    assert max(sizes) < 2 * TABLE_PART_BYTES
    assert sum(sizes) < 200_000


def test_a_new_router_gets_the_whole_table_beside_one_that_gets_the_change_since_revision_0() -> None:
    """The first table of an empty store has revision 0."""
    board = TableBoard()
    first, second = TableFeed(board), TableFeed(board)
    board.post(AnnouncedTable(generation="g", revision=0, routes=Routes()))
    assert kind_of(first.next_frame()) == "table"
    board.post(AnnouncedTable(generation="g", revision=1, routes=Routes()))
    assert kind_of(first.next_frame()) == "delta"
    assert kind_of(second.next_frame()) == "table"


def kind_of(frame: pb.AttachRouterResponse | None) -> str | None:
    return None if frame is None else frame.table_part.WhichOneof("of")


@pytest.mark.asyncio
async def test_a_table_is_brought_in_parts_before_the_hello() -> None:
    async with running_controller() as mesh:
        await mesh.apply("{backends: {b: }, endpoints: {e: }}")
        router = FakeRouter(mesh.channel, "r")
        router.brings_parts = [
            pb.TablePart(table=pb.RoutingTable(generation="2" * 32, revision=7, roster_revision=5), is_first=True),
            pb.TablePart(
                table=pb.RoutingTable(
                    assignments=[
                        pb.PartitionAssignment(
                            owners=[pb.PartitionOwner(replica_id="a", incarnation="1" * 32)],
                            partition_owners=[0] * PARTITIONS,
                            owner_epochs=[9] * PARTITIONS,
                        )
                    ]
                )
            ),
            pb.TablePart(table=pb.RoutingTable(endpoints=[pb.EndpointRoute(name="e", assignment=1)]), is_last=True),
        ]
        async with router:
            announced = await router.wait_for(lambda it: it.covers, "a table that covers what was brought")
            assert [(it.generation, it.revision) for it in announced.covers] == [("2" * 32, 5)]
            store = mesh.controller.store
            owned = await wait_until(lambda: store.read().ownership.get("e"), what="the owners that were brought")
            assert owned is not None
            assert owned.owners == (Incarnation("a", "1" * 32),)
            assert set(owned.epochs) == {9}


@pytest.mark.asyncio
async def test_a_brought_table_that_makes_no_sense_is_refused_by_its_field() -> None:
    async with running_controller() as mesh:
        router = FakeRouter(mesh.channel, "r")
        wrong = pb.RoutingTable(generation="2" * 32, revision=7, endpoints=[pb.EndpointRoute(name="e", assignment=2)])
        router.brings_parts = [pb.TablePart(table=wrong, is_first=True, is_last=True)]
        async with router:
            await wait_until(lambda: router.is_ended, what="the refusal")
            assert isinstance(router.ended, grpc.aio.AioRpcError)
            assert "table_part.table.endpoints[0].assignment" in str(router.ended.details())
