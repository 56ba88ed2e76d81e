"""Replicas and routers at a real controller over real gRPC: attachment, leases, refusals."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from controller_service.shell.metrics import replica_counts
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.internal.v1.membership_service_pb2_grpc import MembershipServiceStub
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.contract.controller.digits_backend import DIGITS, evenly
from tests.support.controllers import Controlled, eventually, running_controller, violations
from tests.support.fakes.members import FakeReplica, FakeRouter, owners, replica_routes
from tests.support.wait import wait_until


def emptied(partitions: list[int], epochs: list[int]) -> membership_service_pb2.AttachReplicaRequest:
    given_up = membership_service_pb2.EndpointPartitions(endpoint="digits", partitions=partitions, owner_epochs=epochs)
    return membership_service_pb2.AttachReplicaRequest(
        emptied=membership_service_pb2.PartitionsEmptied(endpoints=[given_up])
    )


async def wait_for_state(mesh: Controlled, replica_id: str, state: str) -> None:
    async def look() -> bool:
        replica = (await mesh.replicas()).get(replica_id)
        return replica is not None and mesh_pb2.ReplicaState.Name(replica.state) == f"REPLICA_STATE_{state}"

    await eventually(look, what=f"{replica_id} is {state}")


@pytest.mark.asyncio
async def test_a_replica_is_told_its_configuration_first_and_when_it_changes() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 1)
        async with FakeReplica(mesh.channel, "v1", "a") as a:
            await wait_until(lambda: a.configurations, what="a configuration")
            first = a.configurations[0]
            assert first.backend.max_ongoing == 7
            assert not first.backend.HasField("prefetch")
            assert dict(first.backend.user_config) == {"model": "centroid", "k": 3.0}
            assert first.backend.graceful_timeout.seconds == 2
            assert first.backend.name == "v1"
            assert not first.is_backend_unknown

            await mesh.apply((DIGITS % 1).replace("max_ongoing: 7", "max_ongoing: 9"))
            await wait_until(lambda: len(a.configurations) == 2, what="the new configuration")
            assert a.configurations[1].backend.max_ongoing == 9


@pytest.mark.asyncio
async def test_replicas_are_told_where_routers_are_and_when_that_changes() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 1)
        async with FakeReplica(mesh.channel, "v1", "a") as a:
            await wait_until(lambda: a.configurations, what="a configuration")
            assert not a.configurations[0].router_addresses
            async with FakeRouter(mesh.channel, "r1") as one:
                told = [one.address]
                await wait_until(lambda: list(a.configurations[-1].router_addresses) == told, what="the first router")
                assert a.configurations[-1].backend == a.configurations[0].backend
                async with (
                    FakeRouter(mesh.channel, "r2", "127.0.0.1:7072") as two,
                    FakeReplica(mesh.channel, "v1", "b") as b,
                ):
                    both = sorted([one.address, two.address])
                    for each in (a, b):
                        await wait_until(
                            lambda each=each: (
                                each.configurations  # type: ignore[misc]  # a lambda's default
                                and list(each.configurations[-1].router_addresses) == both
                            ),
                            what="both routers",
                        )
                    await two.say_goodbye()
                    await wait_until(lambda: list(a.configurations[-1].router_addresses) == told, what="the one left")


@pytest.mark.asyncio
async def test_a_replica_may_attach_before_its_backend_is_known() -> None:
    async with running_controller() as mesh, FakeReplica(mesh.channel, "v1", "a") as a:
        await wait_until(lambda: a.configurations, what="the default configuration")
        assert a.configurations[0].is_backend_unknown
        await a.report("READY")
        await mesh.apply(DIGITS % 1)
        await wait_until(lambda: len(a.configurations) == 2, what="its own configuration")
        assert not a.configurations[1].is_backend_unknown
        async with FakeRouter(mesh.channel, "r") as router:
            await router.wait_for(lambda table: owners(table, "digits") == evenly("a"), "a's partitions")
        assert a.configurations[-1].backend.max_ongoing == 7


@pytest.mark.asyncio
async def test_silence_makes_a_replica_suspect_and_a_word_makes_it_well() -> None:
    async with running_controller(lease_s=0.1) as mesh:
        await mesh.apply(DIGITS % 1)
        async with FakeReplica(mesh.channel, "v1", "a") as a, FakeRouter(mesh.channel, "r") as router:

            async def owns() -> bool:
                """It reports until then: a suspect is given no partitions."""
                await a.report("READY")
                return bool(router.tables) and owners(router.table, "digits") == evenly("a")

            await eventually(owns, what="a's partitions")
            await wait_for_state(mesh, "a", "SUSPECT")
            counts = replica_counts(mesh.controller.store, mesh.controller.state)
            assert (counts["v1", "suspect"], counts["v1", "ready"]) == (1, 0)
            await a.report("READY")
            await wait_for_state(mesh, "a", "READY")


@pytest.mark.asyncio
async def test_a_silent_router_is_no_longer_listed_and_told_to_come_back() -> None:
    async with running_controller(lease_s=0.1) as mesh, FakeRouter(mesh.channel, "r") as router:
        await wait_until(lambda: router.is_ended, what="the end of the stream")
        assert not (await mesh.operator.ListRouters(pb.ListRoutersRequest())).routers
        await router.attach()
        await wait_until(lambda: mesh.controller.state.observed.routers, what="the router again")


@pytest.mark.asyncio
async def test_a_second_router_of_the_same_id_is_refused_while_the_first_is_there() -> None:
    async with running_controller() as running, FakeRouter(running.channel, "r1", "127.0.0.1:1") as first:
        await first.wait_for(bool, "a table")
        async with FakeRouter(running.channel, "r1", "127.0.0.1:2") as namesake:
            await wait_until(lambda: namesake.is_ended, what="the refusal")
            assert namesake.ended is not None
            assert namesake.ended.code() is grpc.StatusCode.INVALID_ARGUMENT
            told = namesake.ended.details() or ""
            assert "hello.router_id: a router 'r1' is attached already, from 127.0.0.1:1" in told
        assert not first.is_ended

        await first.cut()
        await wait_until(lambda: not len(running.controller.routers), what="the end of its stream")
        async with FakeRouter(running.channel, "r1", "127.0.0.1:2") as successor:
            await successor.wait_for(lambda table: "127.0.0.1:2" in table.router_addresses, "the new address")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("frame", "code", "field"),
    [
        (membership_service_pb2.AttachReplicaRequest(), "INVALID_ARGUMENT", "hello"),
        (
            membership_service_pb2.AttachReplicaRequest(
                hello=membership_service_pb2.ReplicaHello(replica_id="a b", incarnation="0" * 32, backend="v1")
            ),
            "INVALID_ARGUMENT",
            "hello.replica_id",
        ),
        (
            membership_service_pb2.AttachReplicaRequest(
                hello=membership_service_pb2.ReplicaHello(replica_id="a", incarnation="7", backend="v1")
            ),
            "INVALID_ARGUMENT",
            "hello.incarnation",
        ),
        (
            membership_service_pb2.AttachReplicaRequest(
                hello=membership_service_pb2.ReplicaHello(
                    replica_id="a", incarnation="7" * 32, backend="v1", newest_epoch=2**63 - 1
                )
            ),
            "INVALID_ARGUMENT",
            "hello.newest_epoch",
        ),
    ],
)
async def test_a_wrong_hello_is_refused_with_the_field(frame: Any, code: str, field: str) -> None:
    async with running_controller() as mesh:
        call = MembershipServiceStub(mesh.channel).AttachReplica()
        await call.write(frame)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert error.value.code().name == code
        assert list(violations(error.value)) == [field]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("frame", "code", "field"),
    [
        (
            membership_service_pb2.AttachReplicaRequest(report=membership_service_pb2.ReplicaReport()),
            "INVALID_ARGUMENT",
            "report.state",
        ),
        (
            membership_service_pb2.AttachReplicaRequest(
                report=membership_service_pb2.ReplicaReport(state=mesh_pb2.REPLICA_STATE_READY)
            ),
            "INVALID_ARGUMENT",
            "report.address",
        ),
        (emptied([4096], [1]), "INVALID_ARGUMENT", "emptied.endpoints[0].partitions"),
        (emptied([1, 2], [1]), "INVALID_ARGUMENT", "emptied.endpoints[0].owner_epochs"),
        (membership_service_pb2.AttachReplicaRequest(), "UNIMPLEMENTED", ""),
    ],
)
async def test_a_wrong_report_ends_the_stream_with_the_field(frame: Any, code: str, field: str) -> None:
    async with running_controller() as mesh, FakeReplica(mesh.channel, "v1", "a") as a:
        await a.send(frame)
        await wait_until(lambda: a.is_ended, what="the refusal")
        assert isinstance(a.ended, grpc.aio.AioRpcError)
        assert a.ended.code().name == code
        assert list(violations(a.ended)) == [field] * bool(field)


@pytest.mark.asyncio
async def test_members_learn_that_the_controller_stops() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 1)
        a, router = FakeReplica(mesh.channel, "v1", "a"), FakeRouter(mesh.channel, "r")
        await a.attach()
        await router.attach()
        await wait_until(lambda: a.configurations and router.tables, what="both attached")
        mesh.controller.replicas.close()
        mesh.controller.routers.close()
        await wait_until(lambda: a.is_ended and router.is_ended, what="the end of both streams")
        for member in (a, router):
            assert isinstance(member.ended, grpc.aio.AioRpcError)
            assert member.ended.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_a_replica_that_failed_stays_listed_until_it_has_ended() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(DIGITS % 1)
        async with FakeReplica(mesh.channel, "v1", "a") as a:
            await a.report("READY")
            await router.wait_for(lambda table: replica_routes(table, "v1"), "a in the table")
            await a.report("FAILED")
            await router.wait_for(lambda table: replica_routes(table, "v1")["a"].draining, "a takes no calls")
            await a.report("STOPPED")
            await router.wait_for(lambda table: not replica_routes(table, "v1"), "a out of the table")


@pytest.mark.asyncio
async def test_members_keep_the_start_of_their_process_at_a_controller_that_they_attach_to_later() -> None:
    """As after a fail-over: not the time at which they attached there."""
    began = Timestamp(seconds=1_700_000_000)
    async with running_controller() as mesh:
        await mesh.apply("backends: {v1: {handler: 'app:One'}}")
        replica, router = FakeReplica(mesh.channel, "v1", "a"), FakeRouter(mesh.channel, "r")
        replica.start_time = router.start_time = began
        router.pid = 12
        async with replica, router:
            await replica.report("READY")

            async def attached() -> Any:
                replicas, routers = await mesh.replicas(), await mesh.operator.ListRouters(pb.ListRoutersRequest())
                return "a" in replicas and routers.routers and (replicas["a"], routers.routers[0])

            listed, shown = await eventually(attached, what="both members")
    assert (listed.start_time, listed.pid) == (began, 4_711)
    assert (shown.start_time, shown.pid) == (began, 12)
