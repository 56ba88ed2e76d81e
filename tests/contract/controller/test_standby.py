"""Two controllers on one state file, over real gRPC: one leads, the other one says who, and takes over."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import pytest
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.process_life import LEADS_NO_MORE
from controller_service.store.protocol import LeadershipLost
from controller_service.store.sqlite.state_lock import leader_of as leader_at
from controller_service.store.sqlite.state_lock import lock_path
from controller_service.store.sqlite.store_thread import SqliteStore
from slotmesh.cli.connection import leader_among
from slotmesh.cli.console import CommandFailed
from slotmesh.cli.operator import Operator
from slotmesh.errors import Executed, Reason
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.runtime.exits import CannotStart
from slotmesh.server.info_servicer import InfoServicer
from slotmesh.server.server import GrpcServer
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2, info_service_pb2, info_service_pb2_grpc
from tests.support.controllers import eventually
from tests.support.fakes.members import FakeReplica, FakeRouter, epochs, owners
from tests.support.metrics import scraped
from tests.support.standing_by import LivingController, leader_and_standby, stolen_lock
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1: {num_replicas: 1}
  v2: {num_replicas: 1}
endpoints:
  e: {traffic: {v1: 1.0}}
"""
RPCS = [
    method
    for module, service in (
        (controller_service_pb2, "ControllerService"),
        (membership_service_pb2, "MembershipService"),
    )
    for method in module.DESCRIPTOR.services_by_name[service].methods
]


async def called(channel: grpc.aio.Channel, method: Any) -> None:
    """One rpc with an empty request, whatever its kind."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    request = message_factory.GetMessageClass(method.input_type)()
    response = message_factory.GetMessageClass(method.output_type).FromString
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    rpc = getattr(channel, kind)(path, type(request).SerializeToString, response)
    call = rpc() if method.client_streaming else rpc(request)
    if method.client_streaming:
        await call.write(request)
    if method.server_streaming:
        await call.read()
    else:
        await call


async def test_a_standby_refuses_every_rpc_with_the_address_of_the_leader(tmp_path: Path) -> None:
    async with leader_and_standby(tmp_path / "state") as (leader, standby):
        for method in RPCS:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await called(standby.channel, method)
            failure = from_rpc_error(refused.value)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, method.name
            assert (failure.reason, failure.executed) == (Reason.NOT_LEADER, Executed.NO), method.name
            assert failure.metadata["leader"] == leader.address, method.name
            assert leader.address in failure.message, method.name


async def test_a_standby_tells_the_truth_of_itself(tmp_path: Path) -> None:
    async with leader_and_standby(tmp_path / "state", metrics_port=0) as (leader, standby):
        said = await standby.standing()
        assert (said.leads, said.term, said.leader_address) == (False, 0, leader.address)
        first = await leader.standing()
        assert (first.leads, first.leader_address) == (True, leader.address)

        for it, health_status in ((leader, "SERVING"), (standby, "NOT_SERVING")):
            health: Any = health_pb2_grpc.HealthStub(it.channel)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) == health_status
        assert await page(leader, "readyz") == (200, "serving\n")
        status, text = await page(standby, "readyz")
        assert status == 503
        assert text.startswith(f"standing by: the controller at {leader.address} (pid ")
        assert await page(standby, "readyz?standbyok") == (200, text)
        assert await page(standby, "healthz") == (200, "ok\n")
        for it, leads, behind in ((leader, 1, 1), (standby, 0, 0)):
            said_to_prometheus = await scraped(it.metrics.address or "")
            assert said_to_prometheus.total("slotmesh_controller_is_leader") == leads
            assert said_to_prometheus.total("slotmesh_controller_standbys") == behind
            assert said_to_prometheus.total("slotmesh_controller_term") == first.term * leads


async def page(controller: LivingController, name: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urlopen(f"http://{controller.metrics.address}/{name}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def test_the_standby_goes_on_where_the_leader_ended(tmp_path: Path) -> None:
    async with leader_and_standby(tmp_path / "state") as (leader, standby):
        await leader.apply(MESH)
        router, replica = FakeRouter(leader.channel, "r"), FakeReplica(leader.channel, "v1", "a")
        async with router, replica:
            await replica.report("READY")
            table = await router.wait_for(lambda table: "a" in owners(table, "e"), "an owner")
            before = await leader.standing()
            assert router.terms == {before.term}
            assert replica.terms == {before.term}

            assert await leader.end() == 0
            now = await standby.leads()
            assert now.term == before.term + 1
            replica.has_served, replica.generation = True, table.generation
            router.brings = table
            await replica.move(standby.channel)
            await replica.report("READY")
            await router.move(standby.channel)
            await router.wait_for(lambda it: it.revision > table.revision, "the next table")
            assert router.table.generation == table.generation
            assert (owners(router.table, "e"), epochs(router.table, "e")) == (owners(table, "e"), epochs(table, "e"))
            assert not replica.revoked
            assert router.terms == {before.term, now.term}
            assert replica.terms == {before.term, now.term}
            await standby.apply(MESH.replace("v1: 1.0", "v2: 1.0"))


async def test_members_are_told_where_controllers_are(tmp_path: Path) -> None:
    async with LivingController(tmp_path / "state") as leader:
        await leader.apply(MESH)
        router, replica = FakeRouter(leader.channel, "r"), FakeReplica(leader.channel, "v1", "a")
        async with router, replica:
            await wait_until(lambda: replica.configurations, what="a configuration")
            assert not replica.configurations[-1].controller_addresses
            async with LivingController(tmp_path / "state") as standby:
                both = [leader.address, standby.address]
                await wait_until(lambda: router.controllers == both, what="the router hears of the standby")
                await wait_until(
                    lambda: replica.configurations[-1].controller_addresses == both, what="the replica hears of it"
                )
            await leader.leads()
            async with LivingController(tmp_path / "state") as other:
                both = [leader.address, other.address]
                await wait_until(lambda: router.controllers == both, what="the router hears of the other one")


async def test_a_leader_whose_lock_was_taken_ends_at_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with leader_and_standby(state) as (leader, standby):
        await leader.apply(MESH)
        async with FakeRouter(leader.channel, "r") as router, FakeReplica(leader.channel, "v1", "a") as replica:
            await router.wait_for(lambda table: table.endpoints, "a table")
            with stolen_lock(state):
                assert await leader.running == LEADS_NO_MORE
                await wait_until(lambda: router.is_ended and replica.is_ended, what="the end of its streams")
                assert not replica.drains
                assert not (await standby.standing()).leads
            await standby.leads()
        await standby.apply(MESH)


async def test_what_an_earlier_leader_commits_is_refused_for_good(tmp_path: Path) -> None:
    state = tmp_path / "state"
    earlier = await SqliteStore.open(state, lambda: ("a" * 32, Desired()))
    lock_path(state).unlink()
    later = await SqliteStore.open(state, None)
    assert later.term == earlier.term + 1
    for _ in range(2):
        with pytest.raises(LeadershipLost, match="was taken over by the controller"):
            await earlier.commit(ChangeSet(), expected_revision=earlier.read().revision)
    with pytest.raises(LeadershipLost):
        await anext(earlier.standing())
    before = later.read().revision
    assert (await later.commit(ChangeSet(), expected_revision=before)).revision == before + 1
    await later.close()
    with pytest.raises(LeadershipLost):  # whoever has the file now, or nobody
        await earlier.commit(ChangeSet(), expected_revision=earlier.read().revision)
    await earlier.close()


async def test_a_lock_file_that_is_deleted_is_made_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with LivingController(state) as leader:
        await leader.leads()
        lock_path(state).unlink()
        await wait_until(lock_path(state).exists, timeout=20, what="the lock file")
        async with LivingController(state) as standby:
            await leader.leads(standby.address)
            await wait_until_refers(standby, leader.address)


async def test_a_standby_that_was_asked_to_stop_leaves_nothing(tmp_path: Path) -> None:
    async with LivingController(tmp_path / "state") as leader:
        await leader.leads()
        async with LivingController(tmp_path / "state") as standby:
            await leader.leads(standby.address)
            assert await standby.end() == 0
        await leader.leads()
        assert not [name for name in os.listdir(tmp_path) if "standby" in name]  # noqa: PTH208 - names only


async def test_a_standby_begins_no_empty_state_where_the_file_is_gone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with leader_and_standby(state) as (leader, standby):
        await leader.apply(MESH)
        state.rename(tmp_path / "away")
        assert await leader.end() == 0
        with pytest.raises(CannotStart, match=r"is gone, with all that it had: put it back"):
            await standby.running
        assert not state.exists()


async def test_of_several_that_stand_by_one_leads_and_the_others_go_on_waiting(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with leader_and_standby(state) as (leader, one), LivingController(state) as two:
        await leader.apply(MESH)
        await leader.leads(*sorted((one.address, two.address)))
        first = await leader.standing()
        assert await leader.end() == 0
        next_one = await eventually(lambda: leader_of(one, two), what="one of them leads")
        assert next_one is not None
        other = one if next_one is two else two
        assert (await next_one.leads(other.address)).term == first.term + 1
        await wait_until_refers(other, next_one.address)
        await next_one.apply(MESH)
        assert await next_one.end() == 0
        assert (await other.leads()).term == first.term + 2


async def leader_of(*controllers: LivingController) -> LivingController | None:
    for each in controllers:
        if (await each.standing()).leads:
            return each
    return None


async def wait_until_refers(standby: LivingController, leader: str) -> None:
    async def look() -> bool:
        now = await standby.standing()
        return not now.leads and now.leader_address == leader

    await eventually(look, what=f"it names {leader}")


async def test_whoever_asks_for_it_is_refused_instead(tmp_path: Path) -> None:
    async with LivingController(tmp_path / "state") as leader:
        noted = tmp_path / "state"
        await wait_until(lambda: leader_at(noted).address == leader.address, timeout=20, what="its note for others")
        with pytest.raises(CannotStart, match=rf"is in use by the controller at {leader.address}"):
            async with LivingController(tmp_path / "state", if_in_use="refuse"):
                pass


async def test_a_controller_says_where_others_reach_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with LivingController(state, host="0.0.0.0", insecure=True) as leader:
        await leader.leads()
        async with LivingController(state, advertise="standby.example:7070") as standby:
            await leader.leads("standby.example:7070")
            assert (await standby.standing()).leader_address == "", "nobody can connect to 0.0.0.0"
            assert "standby.example" not in (await leader.standing()).leader_address


async def test_a_standby_of_which_nobody_knows_where_it_is_counts_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    async with LivingController(state, metrics_port=0) as leader:
        await leader.leads()
        async with LivingController(state, host="0.0.0.0", insecure=True):
            assert "with --advertise HOST" in caplog.text
            leadership = leader.life.front.leadership
            assert leadership is not None
            await wait_until(lambda: leadership.standing.waiting == 1, timeout=20, what="the leader knows of it")
            assert leadership.standing.standbys == ()
            assert (await scraped(leader.metrics.address or "")).total("slotmesh_controller_standbys") == 1
        await wait_until(lambda: not leadership.standing.waiting, timeout=20, what="the leader knows that it left")


async def test_commands_ask_the_one_that_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotmesh.cli.connection.LEADS_WITHIN_S", 0.5)
    nobody = "127.0.0.1:1"
    async with leader_and_standby(tmp_path / "state") as (leader, standby):
        assert await leader_among([standby.address, nobody, leader.address]) == leader.address
        async with Operator.at(f"{standby.address},{leader.address}") as operator:
            now = await operator.standing()
            assert (now.address, now.role.leads, [*now.role.standby_addresses]) == (
                leader.address,
                True,
                [standby.address],
            )
            assert abs((datetime.now(UTC) - now.role.leads_since_time.ToDatetime(UTC)).total_seconds()) < 60.0
        with stolen_lock(tmp_path / "state"):
            await leader.running
            with pytest.raises(CommandFailed) as failed:
                await leader_among([leader.address, standby.address])
            told = str(failed.value)
            assert told.startswith(f"no controller leads; standing by: {standby.address}\nno controller answers at ")
        await standby.leads()
        router = GrpcServer("router")
        info = InfoServicer(info_service_pb2.SERVER_KIND_ROUTER)
        router.add(info_service_pb2_grpc.add_InfoServiceServicer_to_server, info)
        await router.start()
        try:
            assert await leader_among([router.address, nobody, standby.address]) == standby.address
            with pytest.raises(CommandFailed, match=rf"what answers at {router.address} is not a controller"):
                await leader_among([router.address, nobody])
        finally:
            await router.stop()
    with pytest.raises(CommandFailed, match=r"no controller answers at 127\.0\.0\.1:1 or 127\.0\.0\.1:2;"):
        await leader_among([nobody, "127.0.0.1:2"])
