"""`GetSnapshot`: all that live views show, in one answer, and what they take differences of."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import grpc
import pytest

import slotmesh
import slotmesh.testing
from controller_service.convert.replicas import load_of_report
from slotmesh.cli.checking.gathering import look_at
from slotmesh.cli.commands.check import findings_of
from slotmesh.histogram import CALL_TIMES
from slotmesh.internal.v1 import membership_service_pb2 as members_pb
from slotmesh.runtime.channels import open_channel
from slotmesh.testing import Backend
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import controller_service_pb2_grpc, mesh_pb2
from tests.support.controllers import eventually, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter

pytestmark = pytest.mark.asyncio

ONE = """
backends: {v1: {handler: "app:One", num_replicas: 2}}
endpoints: {digits: {traffic: {v1: 1}}}
"""


class CountingRouter(FakeRouter):
    """A router that says which of its starts it is, and what it has counted since."""

    def __init__(self, channel: grpc.aio.Channel, router_id: str) -> None:
        super().__init__(channel, router_id)
        self.incarnation = "1" * 32

    async def counted(self, accepted: int, sent: int) -> None:
        report = members_pb.RouterReport(
            generation=self.table.generation,
            revision=self.table.revision,
            loads=[mesh_pb2.BackendLoad(backend="v1", sent=sent)],
            endpoint_loads=[mesh_pb2.EndpointLoad(endpoint="digits", accepted=accepted)],
        )
        await self.send(members_pb.AttachRouterRequest(report=report))


async def snapshot_where(
    operator: Any, is_right: Callable[[pb.GetSnapshotResponse], object], what: str
) -> pb.GetSnapshotResponse:
    async def ask() -> pb.GetSnapshotResponse | None:
        response: pb.GetSnapshotResponse = await operator.GetSnapshot(pb.GetSnapshotRequest())
        return response if is_right(response) else None

    found = await eventually(ask, what=what)
    assert found is not None
    return found


def accepted(response: pb.GetSnapshotResponse) -> tuple[list[int], list[int]]:
    """Of the only router and endpoint: newest and earlier."""
    (router,) = response.routers
    return [it.accepted for it in router.router.endpoint_loads], [it.accepted for it in router.earlier_endpoint_loads]


def _is_announced(said: pb.GetSnapshotResponse) -> bool:
    return said.backends[0].status.ready_replicas == 1 and said.table_revision > 0


async def test_it_has_what_runs_and_what_should() -> None:
    async with running_controller() as mesh, FakeReplica(mesh.channel, "v1", "v1-a") as replica:
        await mesh.apply(ONE)
        await replica.report("READY")
        said = await snapshot_where(mesh.operator, _is_announced, "a ready replica, in a table")
        (backend,) = said.backends
        status = backend.status
        assert backend.name == "v1"
        assert (status.wanted_replicas, status.live_replicas, status.failed_replicas) == (2, 1, 0)
        assert [it.name for it in said.endpoints] == ["digits"]
        assert [it.replica.replica_id for it in said.replicas] == ["v1-a"]
        assert not said.replicas[0].replica.HasField("load")
        assert len(said.generation) == 32
        assert said.time.seconds > 0
        await replica.report("FAILED", error="Traceback\n  many lines\nValueError: no")
        said = await snapshot_where(mesh.operator, lambda it: it.backends[0].status.failed_replicas, "a failed replica")
        assert said.backends[0].status.ready_replicas == 0
        assert said.replicas[0].replica.error == "ValueError: no"


async def test_a_router_that_starts_again_has_no_earlier_report() -> None:
    async with running_controller() as mesh:
        await mesh.apply(ONE)
        async with CountingRouter(mesh.channel, "router-a") as router:
            await router.wait_for(lambda _: True, "a table")
            await router.counted(100, 90)
            await router.counted(150, 140)
            said = await snapshot_where(mesh.operator, lambda it: accepted(it)[0] == [150], "the newest report")
            assert accepted(said) == ([150], [100])
            assert [it.sent for it in said.routers[0].earlier_loads] == [90]
            assert said.routers[0].router.incarnation == "1" * 32
            assert abs(said.routers[0].report_time.seconds - said.time.seconds) < 60
            (listed,) = (await mesh.operator.ListRouters(pb.ListRoutersRequest())).routers
            assert [it.accepted for it in listed.endpoint_loads] == [150]

            router.incarnation = "2" * 32
            await router.cut()
            await router.attach()
            await router.counted(200, 190)
            said = await snapshot_where(mesh.operator, lambda it: accepted(it)[0] == [200], "the newest report")
            assert accepted(said) == ([200], [])
            await router.say_goodbye()
        assert not (await mesh.operator.GetSnapshot(pb.GetSnapshotRequest())).routers


async def test_a_router_of_an_older_version_that_counts_anew_has_no_earlier_report() -> None:
    async with running_controller() as mesh:
        await mesh.apply(ONE)
        async with CountingRouter(mesh.channel, "router-a") as router:
            router.incarnation = ""
            await router.cut()
            await router.attach()
            await router.wait_for(lambda _: True, "a table")
            await router.counted(100, 90)
            await router.counted(7, 7)
            said = await snapshot_where(mesh.operator, lambda it: accepted(it)[0] == [7], "the newest report")
            assert accepted(said) == ([7], [])


class Adder:
    async def add(self, one: int, another: int) -> int:
        return one + another

    async def fail(self) -> None:
        raise ValueError("no")

    @slotmesh.batch(max_batch_size=4, batch_wait_timeout_s=0.01)
    async def double(self, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]


async def test_totals_come_from_real_routers_and_replicas() -> None:
    async with slotmesh.testing.mesh({"w": Backend(Adder)}) as mesh:
        endpoint = mesh.endpoint("w")
        assert await endpoint.add(1, 2) == 3
        with pytest.raises(slotmesh.SlotmeshError):
            await endpoint.fail()
        assert await endpoint.double.map([1, 2, 3]) == [2, 4, 6]
        async with open_channel(mesh.controller_address) as channel:
            stub = controller_service_pb2_grpc.ControllerServiceStub(channel)

            def is_counted(said: pb.GetSnapshotResponse) -> bool:
                return accepted(said)[0] == [5] and said.replicas[0].replica.load.totals.calls == 5

            said = await snapshot_where(stub, is_counted, "all calls are counted")
            listed: Any = [
                await stub.ListRouters(pb.ListRoutersRequest()),
                await stub.ListReplicas(pb.ListReplicasRequest()),
            ]
        for response in (said, *listed):
            bounds = [each.ToNanoseconds() / 1e9 for each in response.time_bounds]
            assert bounds == list(CALL_TIMES), "each response with `times` has their bounds"
        (load,) = said.routers[0].router.endpoint_loads
        (ends,) = load.ends
        assert (load.endpoint, load.failed, load.waiting) == ("w", 1, 0)
        assert (ends.backend, ends.ended.total, ends.ended.failed, sum(ends.ended.times)) == ("w", 5, 1, 4)
        totals = said.replicas[0].replica.load.totals
        assert (totals.failed, totals.batched_calls) == (1, 3)
        assert 1 <= totals.batches <= 3
        assert (len(totals.times), sum(totals.times)) == (len(CALL_TIMES) + 1, 5), "each call took some time there"


SLOW_S = 0.1
QUICK_BOUNDS = [bound for bound in CALL_TIMES if bound < SLOW_S]
_made = count()


class SlowSecond:
    """Its second instance takes its time."""

    def __init__(self) -> None:
        self._takes_s = SLOW_S if next(_made) % 2 else 0.0

    async def add(self, one: int, another: int) -> int:
        await asyncio.sleep(self._takes_s)
        return one + another


async def test_a_slow_replica_is_told_from_the_others_by_the_times_of_its_calls() -> None:
    async with slotmesh.testing.mesh(
        {"w": Backend(SlowSecond, num_replicas=2, settings={"balancer": "round_robin"})}
    ) as mesh:
        endpoint = mesh.endpoint("w")
        async with open_channel(mesh.controller_address) as channel:
            stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
            for _ in range(10):
                await endpoint.add(1, 2)

            def is_counted(said: pb.GetSnapshotResponse) -> bool:
                return sum(it.replica.load.totals.calls for it in said.replicas) == 10

            said = await snapshot_where(stub, is_counted, "all calls are counted")
    counts = [[*it.replica.load.totals.times] for it in said.replicas]
    assert sorted(map(sum, counts)) == [5, 5]
    assert 0 in [sum(each[: len(QUICK_BOUNDS)]) for each in counts], "no call of the slow one was quicker than that"


async def test_what_a_replica_counts_in_other_buckets_is_not_known() -> None:
    report = members_pb.AttachReplicaRequest()
    report.report.load.totals.times.extend([1, 2, 3])
    load = load_of_report(report)
    assert load is not None
    assert load.totals is not None
    assert load.totals.times == ()


@pytest.mark.asyncio
async def test_a_backend_without_a_ready_replica_has_the_prospect_that_routers_decide_by() -> None:
    async with running_controller() as mesh, AsyncExitStack() as stack:
        await mesh.apply("backends: {none: {}, coming: {}, failing: {num_replicas: 1}, ready: {}}")
        for backend, state in (("coming", "STARTING"), ("failing", "FAILED"), ("ready", "READY")):
            replica = await stack.enter_async_context(FakeReplica(mesh.channel, backend, f"{backend}-1"))
            await replica.report(state)

        async def prospects() -> dict[str, str]:
            snapshot = await mesh.operator.GetSnapshot(pb.GetSnapshotRequest())
            return {it.name: mesh_pb2.Prospect.Name(it.status.prospect) for it in snapshot.backends}

        async def are_known() -> bool:
            return await prospects() == {
                "none": "PROSPECT_UNSPECIFIED",
                "coming": "PROSPECT_COMING",
                "failing": "PROSPECT_FAILING",
                "ready": "PROSPECT_UNSPECIFIED",
            }

        await eventually(are_known, what="the prospects of all backends")


async def test_a_check_finds_the_endpoint_whose_calls_fail_now() -> None:
    async with slotmesh.testing.mesh({"w": Backend(Adder)}) as mesh:
        endpoint = mesh.endpoint("w")

        async def failing() -> list[str]:
            await asyncio.gather(*(endpoint.fail() for _ in range(20)), return_exceptions=True)
            seen = await look_at(mesh.controller_address)
            return [it.text for it in findings_of(seen) if it.subject == "endpoint/w"]

        (text,) = await eventually(failing, what="a finding")
        assert re.fullmatch(r"w: \S+ of \S+ calls a second failed or were refused in the last seconds", text)
