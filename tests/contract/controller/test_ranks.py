"""Ranks of replicas, as replicas, routers and operators get them from a real controller."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.internal.v1.membership_service_pb2_grpc import MembershipServiceStub
from tests.contract.controller.digits_backend import DIGITS
from tests.support.controllers import Controlled, eventually, running_controller, violations
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


async def has_rank(replica: FakeReplica, rank: int, number: int) -> None:
    def is_there() -> bool:
        newest = replica.configurations[-1] if replica.configurations else None
        return newest is not None and newest.HasField("rank") and (newest.rank, newest.num_replicas) == (rank, number)

    await wait_until(is_there, what=f"{replica.replica_id} has rank {rank} of {number}")


async def shown(mesh: Controlled, replica_id: str) -> int | None:
    replica = (await mesh.replicas()).get(replica_id)
    return replica.rank if replica is not None and replica.HasField("rank") else None


async def test_each_replica_gets_the_lowest_free_rank_and_the_number_of_replicas_and_changes_of_these() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 2)
        async with FakeReplica(mesh.channel, "v1", "a") as a, FakeReplica(mesh.channel, "v1", "b") as b:
            await has_rank(a, 0, 2)
            await has_rank(b, 1, 2)
            assert [it.rank for it in a.configurations] == [0], "the first configuration has the rank"
            await mesh.apply(DIGITS % 3)
            await has_rank(a, 0, 3)
            await has_rank(b, 1, 3)
            assert (await shown(mesh, "a"), await shown(mesh, "b")) == (0, 1)
            await a.report("READY")
            await b.report("READY")
            async with FakeRouter(mesh.channel, "r") as router:

                def ranks() -> dict[str, int]:
                    backends = router.tables[-1].backends if router.tables else ()
                    return {it.replica_id: it.rank for each in backends for it in each.replicas if it.HasField("rank")}

                await wait_until(lambda: ranks() == {"a": 0, "b": 1}, what="ranks in the table")
            await a.report("STOPPED")

            async def has_ended() -> bool:
                return await shown(mesh, "a") is None

            await eventually(has_ended, what="a has ended")
            async with FakeReplica(mesh.channel, "v1", "c") as c, FakeReplica(mesh.channel, "other", "d") as d:
                await has_rank(c, 0, 3)
                await has_rank(d, 0, 1)
                assert {it.rank for it in b.configurations} == {1}


async def test_without_a_configured_number_it_is_that_of_the_replicas_that_run() -> None:
    async with running_controller() as mesh:
        await mesh.apply("backends: {v1: {handler: 'app:Digits'}}")
        async with FakeReplica(mesh.channel, "v1", "a") as a:
            await has_rank(a, 0, 1)
            async with FakeReplica(mesh.channel, "v1", "b") as b:
                await has_rank(a, 0, 2)
                await b.report("STOPPED")
                await has_rank(a, 0, 1)


@pytest.mark.parametrize("newcomer_first", [True, False])
async def test_replicas_keep_their_ranks_at_the_next_controller(tmp_path: Path, *, newcomer_first: bool) -> None:
    async with running_controller(state=tmp_path / "state") as mesh:
        await mesh.apply(DIGITS % 2)
        async with FakeReplica(mesh.channel, "v1", "a") as a, FakeReplica(mesh.channel, "v1", "b") as b:
            await has_rank(b, 1, 2)
            a.start_time = b.start_time = Timestamp(seconds=1_000)
    async with running_controller(state=tmp_path / "state") as mesh:
        c = FakeReplica(mesh.channel, "v1", "c")
        c.start_time = Timestamp(seconds=2_000)
        if newcomer_first:
            await c.attach()
            await has_rank(c, 0, 2)
        b.rank, a.rank = 1, 0
        await b.move(mesh.channel)
        await has_rank(b, 1, 2)
        await a.move(mesh.channel)
        await has_rank(a, 0, 2)
        if not newcomer_first:
            await c.attach()
        await has_rank(c, 2, 2)
        assert {it.rank for it in a.configurations} == {0}
        for each in (a, b, c):
            await each.cut()


async def test_a_controller_without_state_keeps_the_ranks_free_that_a_routers_table_names() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 2)
        async with FakeReplica(mesh.channel, "v1", "a") as a, FakeReplica(mesh.channel, "v1", "b") as b:
            await a.report("READY")
            await b.report("READY")
            router = FakeRouter(mesh.channel, "r")
            await router.attach()

            def is_ranked() -> bool:
                replicas = [it for each in router.tables[-1:] for backend in each.backends for it in backend.replicas]
                return sorted(it.rank for it in replicas if it.HasField("rank")) == [0, 1]

            await wait_until(is_ranked, what="the table has the ranks")
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 3)
        router.brings = router.table
        await router.move(mesh.channel)

        async def are_known() -> bool:
            return {"a", "b"} <= (await mesh.replicas()).keys()

        await eventually(are_known, what="the replicas are known by the table")
        async with FakeReplica(mesh.channel, "v1", "c") as c:
            await has_rank(c, 2, 3)
        await router.cut()


@pytest.mark.parametrize("rank", [-1, 2**20])
async def test_a_rank_that_no_controller_assigns_is_refused(rank: int) -> None:
    async with running_controller() as mesh:
        call = MembershipServiceStub(mesh.channel).AttachReplica()
        hello = membership_service_pb2.ReplicaHello(replica_id="a", incarnation="a" * 32, backend="v1", rank=rank)
        await call.write(membership_service_pb2.AttachReplicaRequest(hello=hello))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert [*violations(refused.value)] == ["hello.rank"]
