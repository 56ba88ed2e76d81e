"""What routers send before they are attached is bounded: bytes, parts, time, and the loop's time for one of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import grpc
import pytest

from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.errors import Failure, Reason
from slotmesh.grpc_internals import is_off
from slotmesh.internal.v1 import membership_service_pb2 as pb
from slotmesh.internal.v1.membership_service_pb2_grpc import MembershipServiceStub
from slotmesh.runtime import loop_slices
from slotmesh.status import from_rpc_error
from tests.support.controllers import Controlled, running_controller
from tests.support.fakes.members import FakeRouter
from tests.support.tables import one_part
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

OTHER = "2" * 32
"""A generation that is not the controller's."""


def parts(endpoints: int, padding: int = 0) -> list[pb.TablePart]:
    """A head, then one endpoint a part. `padding`: bytes in each name."""
    head = pb.TablePart(table=pb.RoutingTable(generation=OTHER, revision=7, roster_revision=5), is_first=True)
    names = (f"e{at}" + "x" * padding for at in range(endpoints))
    found = [head, *(pb.TablePart(table=pb.RoutingTable(endpoints=[pb.EndpointRoute(name=it)])) for it in names)]
    found[-1].is_last = True
    return found


async def refusal_of(mesh: Controlled, sent: Sequence[pb.TablePart], router_id: str = "r") -> Failure:
    """Why a router is refused that sends these parts and a hello."""
    router = FakeRouter(mesh.channel, router_id)
    router.brings_parts = [*sent]
    async with router:
        await wait_until(lambda: router.is_ended, what="the refusal")
        assert isinstance(router.ended, grpc.aio.AioRpcError)
        failure = from_rpc_error(router.ended)
        if is_off() and failure.reason is Reason.INTERNAL:
            pytest.skip("grpc.aio as it is published loses the status of a stream that ends during a write")
        return failure


async def waiting_stream(mesh: Controlled, sent: Sequence[pb.TablePart]) -> Any:
    """A stream that sends these parts, and no hello."""
    stream = MembershipServiceStub(mesh.channel).AttachRouter()
    for part in sent:
        await stream.write(pb.AttachRouterRequest(table_part=part))
    return stream


def read_bytes(mesh: Controlled) -> int:
    return mesh.controller.routers._hellos._reading


async def test_a_table_has_a_limited_number_of_parts() -> None:
    async with running_controller(max_router_table_parts=3) as mesh:
        error = await refusal_of(mesh, parts(3))
        assert error.reason == "PAYLOAD_TOO_LARGE"
        assert "more than 3 parts (max_router_table_parts)" in str(error)
        async with FakeRouter(mesh.channel, "r") as router:
            await router.wait_for(lambda _: True, "a table for a router within the bound")


async def test_a_table_has_a_limited_size_in_whatever_number_of_frames() -> None:
    async with running_controller(max_router_table_size=3_000) as mesh:
        error = await refusal_of(mesh, parts(4, padding=1_000))
        assert error.reason == "PAYLOAD_TOO_LARGE"
        assert "3000 at most (max_router_table_size of the controller)" in str(error)
        table = pb.RoutingTable(generation=OTHER, revision=7)
        table.endpoints.add(name="x" * 4_000)
        assert (await refusal_of(mesh, [one_part(table)])).reason == "PAYLOAD_TOO_LARGE"


async def test_the_tables_of_all_routers_have_a_limited_size_until_the_controller_has_learnt_from_them() -> None:
    async with running_controller(max_router_tables_size=3_000) as mesh:
        sent = parts(2, padding=1_000)
        size = sum(part.ByteSize() for part in sent)
        stream = await waiting_stream(mesh, sent)
        await wait_until(lambda: read_bytes(mesh) == size, what="the parts that are being read")
        error = await refusal_of(mesh, sent, "other")
        assert error.reason == "QUOTA_EXCEEDED"
        assert "3000 at most" in str(error)
        stream.cancel()
        await wait_until(lambda: read_bytes(mesh) == 0, what="the room of a stream that has ended")
        # This controller has no configuration, so that it learns from no table yet.
        first = FakeRouter(mesh.channel, "first")
        first.brings_parts = sent
        async with first:
            await wait_until(lambda: "first" in mesh.controller.state.observed.earlier_tables, what="the first table")
            assert (await refusal_of(mesh, sent, "other")).reason == "QUOTA_EXCEEDED"
            await mesh.apply("{backends: {b: }, endpoints: {e: }}")
            await wait_until(
                lambda: not mesh.controller.state.observed.earlier_tables, what="a table that was learnt from"
            )
            other = FakeRouter(mesh.channel, "other")
            other.brings_parts = sent
            async with other:
                await other.wait_for(lambda it: it.covers, "a table for the router that found room")


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (slice(0, 3), "hello: arrived before the last part of the table"),
        (slice(0, 1), "hello: arrived before the last part of the table"),
        (slice(1, 4), "table_part: no table has begun"),
    ],
    ids=["cut", "head alone", "without its head"],
)
async def test_a_table_of_which_parts_are_missing_is_refused(chosen: slice, why: str) -> None:
    """What it lists would count as all that there is: replicas in the missing parts would be ended."""
    async with running_controller() as mesh:
        error = await refusal_of(mesh, parts(3)[chosen])
        assert error.reason == "BAD_REQUEST"
        assert why in str(error)


async def test_parts_behind_the_last_one_are_refused_and_a_new_first_one_begins_anew() -> None:
    async with running_controller() as mesh:
        assert "no table has begun" in str(await refusal_of(mesh, [*parts(1), parts(1)[-1]]))
        router = FakeRouter(mesh.channel, "r")
        router.brings_parts = [*parts(3)[:2], *parts(1)]
        async with router:
            await wait_until(lambda: "r" in mesh.controller.state.observed.earlier_tables, what="the second table")


async def test_a_router_has_a_limited_time_to_say_hello() -> None:
    async with running_controller(router_hello_timeout=timedelta(seconds=1)) as mesh:
        stream = await waiting_stream(mesh, parts(1))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
        error = from_rpc_error(ended.value)
        assert error.reason == "BAD_REQUEST"
        assert "hello: did not arrive within 1 s (router_hello_timeout of the controller)" in str(error)


async def test_a_table_is_read_in_slices_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_slices, "SLICE_S", 0.0)
    rests = 0
    rest = loop_slices.LoopSlices.rest

    async def counted(slices: loop_slices.LoopSlices) -> None:
        nonlocal rests
        rests += 1
        await rest(slices)

    async with running_controller() as mesh:
        router = FakeRouter(mesh.channel, "r")
        table = pb.RoutingTable(generation=OTHER, revision=7)
        for at in range(20):
            table.assignments.add(partition_owners=[-1] * PARTITIONS, owner_epochs=[0] * PARTITIONS)
            table.endpoints.add(name=f"e{at}", assignment=at + 1)
            table.departed.add(replica_id=f"r{at}", incarnation="1" * 32)
        router.brings = table
        monkeypatch.setattr(loop_slices.LoopSlices, "rest", counted)
        async with router:
            await wait_until(lambda: mesh.controller.state.observed.earlier_tables, what="the table")
            assert rests >= 60
