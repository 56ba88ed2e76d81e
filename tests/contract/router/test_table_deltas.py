"""Deltas of routing tables over real gRPC: a real controller, then a real router, beside a scripted other end."""

from __future__ import annotations

import pytest

from slotmesh.internal.v1 import membership_service_pb2 as pb
from tests.contract.controller.digits_backend import DIGITS
from tests.support.controllers import running_controller
from tests.support.fakes.controller import FakeController, table
from tests.support.fakes.members import FakeReplica, FakeRouter, replica_routes
from tests.support.router_bench import RouterBench, router_bench
from tests.support.tables import owners_of
from tests.support.wait import wait_until


@pytest.mark.asyncio
async def test_a_router_gets_the_whole_table_at_first_and_then_what_has_changed() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 1)
        async with FakeReplica(mesh.channel, "v1", "a") as a:
            await a.report("READY")
            async with FakeRouter(mesh.channel, "r") as router:
                await router.wait_for(lambda it: replica_routes(it, "v1"), "the whole table")
                await a.report("READY", max_ongoing=9)
                await router.wait_for(lambda it: replica_routes(it, "v1")["a"].max_ongoing == 9, "the change")
                revisions = [router.wholes[0].revision, *(it.revision for it in router.deltas)]
                assert [it.base_revision for it in router.deltas] == revisions[:-1], "each leads on from the last"
                (change,) = [it.backends for it in router.deltas if it.backends][-1]
                assert [it.max_ongoing for it in change.route.replicas] == [9]
                assert not change.route.HasField("backend"), "the settings are as they were"
                assert len(router.wholes) == 1
                assert router.wholes[0].generation == router.deltas[-1].generation


@pytest.mark.asyncio
async def test_a_router_that_asks_or_attaches_again_gets_the_whole_table() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 1)
        async with FakeRouter(mesh.channel, "r") as router:
            await router.wait_for(lambda it: it.endpoints, "the whole table")
            await router.send(pb.AttachRouterRequest(table_request=pb.TableRequest()))
            await wait_until(lambda: len(router.wholes) == 2, what="the whole table again")
            applied = await mesh.apply(DIGITS % 1 + "  later: \n")
            await wait_until(
                lambda: router.deltas and router.deltas[-1].revision >= applied.revision, what="a delta after that"
            )
            assert router.wholes[-1].revision in [it.base_revision for it in router.deltas], "it goes on from there"
            await router.cut()
            await router.attach()
            await wait_until(lambda: len(router.wholes) == 3, what="the whole table on the next stream")
            assert router.wholes[-1].revision >= applied.revision


def change(base: int, revision: int, **fields: object) -> pb.RoutingTableDelta:
    return pb.RoutingTableDelta(generation="g", base_revision=base, revision=revision, roster_revision=1, **fields)  # type: ignore[arg-type]  # fields of the message


async def in_force(controller: FakeController, revision: int) -> None:
    """The router acknowledges the revision."""
    await wait_until(
        lambda: controller.reports and controller.reports[-1].revision == revision, what=f"revision {revision}"
    )


def added(mesh: RouterBench, name: str) -> pb.BackendRouteDelta:
    """One more replica, at the address of another one."""
    address = mesh.replicas[0].address
    return pb.BackendRouteDelta(
        route=pb.BackendRoute(
            name="b", replicas=[pb.ReplicaRoute(replica_id=name, incarnation="life", address=address, max_ongoing=1)]
        )
    )


@pytest.mark.asyncio
async def test_a_router_takes_deltas_and_asks_for_the_whole_in_place_of_one_that_does_not_apply() -> None:
    async with router_bench() as mesh:
        controller = mesh.controller
        newest = controller.reports[-1].revision
        controller.push_delta(change(newest, newest + 3, backends=[added(mesh, "more")]))
        await in_force(controller, newest + 3)
        await wait_until(
            lambda: "more" in {it.replica_id for it in controller.reports[-1].linked}, what="the link to it"
        )

        # The first part applies, the second does not: nothing is taken.
        wrong = change(newest + 3, newest + 4, backends=[added(mesh, "less")], removed_endpoints=["nobody"])
        controller.push_delta(wrong)
        await wait_until(lambda: len(controller.requests) == 1, what="the request")
        assert controller.requests[0].revision == newest + 3
        controller.push_delta(change(newest + 4, newest + 5))
        await wait_until(lambda: len(controller.requests) == 2, what="another request: the base is not there")
        assert "less" not in {it.replica_id for it in controller.reports[-1].linked}
        assert controller.reports[-1].revision == newest + 3

        addresses = {f"r{at}": each.address for at, each in enumerate(mesh.replicas)}
        controller.push(table(newest + 5, addresses))
        await in_force(controller, newest + 5)
        controller.push_delta(change(newest + 5, newest + 6))
        await in_force(controller, newest + 6)
        assert len(controller.requests) == 2


@pytest.mark.asyncio
async def test_a_delta_applies_to_what_its_own_stream_has_brought_alone() -> None:
    async with router_bench() as mesh:
        controller = mesh.controller
        newest = controller.reports[-1].revision
        hellos = len(controller.hellos)
        controller.forget()
        await wait_until(lambda: len(controller.hellos) > hellos, what="the router attaches again")
        brought = controller.brought[-1]
        assert brought.revision == newest
        assert {it.replica_id for each in brought.backends for it in each.replicas} == {"r0", "r1"}
        assert {it.replica_id for it in owners_of(brought).owners} == {"r0", "r1"}

        # Of the same revision, but it may be that of a store that was put back.
        controller.push_delta(change(newest, newest + 1))
        await wait_until(lambda: len(controller.requests) == 1, what="the request")
        assert controller.requests[0].revision == newest
