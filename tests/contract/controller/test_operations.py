"""`WaitOperations`: what follows from a change is waited for by its name, at any controller of the state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import duration_pb2

from controller_service.core.reconciling.operations import Operation as WaitedOperation
from slotmesh.errors import QuotaExceeded, Reason
from slotmesh.security.identity import CALLER, Identity, Role
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1.operations_pb2 import Operation, WaitOperationsRequest
from tests.contract.controller.test_changes import refused
from tests.contract.controller.test_launching import make_ready
from tests.support.controllers import Controlled, as_if_killed, running_controller, violations
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1: {handler: "%s", num_replicas: 1, graceful_timeout: 0s, min_ready: 0s}
endpoints:
  e: {traffic: {v1: 1.0}}
"""


async def operations(mesh: Controlled, *names: str, within_s: int = 0) -> Sequence[Operation]:
    request = WaitOperationsRequest(names=names, timeout=duration_pb2.Duration(seconds=within_s))
    answer = await mesh.operator.WaitOperations(request)
    return list(answer.operations)


def waiting(mesh: Controlled, *names: str) -> asyncio.Task[Sequence[Operation]]:
    return asyncio.create_task(operations(mesh, *names, within_s=60))


async def is_waiting(mesh: Controlled) -> None:
    await wait_until(lambda: mesh.controller.operations.waiting, what="that it waits")


async def test_a_revision_is_in_force_once_each_router_has_it() -> None:
    async with running_controller() as mesh, AsyncExitStack() as stack:
        routers = [await stack.enter_async_context(FakeRouter(mesh.channel, name)) for name in "rs"]
        name = f"revision/{(await mesh.apply(MESH % 'app:One')).revision}"
        waits = waiting(mesh, name)
        for count, router in enumerate(routers):
            (operation,) = await operations(mesh, name)
            assert (operation.done, operation.completed, operation.total) == (False, count, 2)
            assert operation.pending[0].startswith(f"routers: {2 - count} of 2 do not have the change yet: ")
            await router.wait_for(lambda table: bool(table.endpoints), "the change")
            await router.acknowledge()
            await wait_until(lambda it=router: mesh.controller.state.observed.routers[it.router_id].revision)  # type: ignore[misc]
        (operation,) = await within(waits, "the operation")
        assert operation == Operation(name=name, done=True, completed=2, total=2)


async def test_a_rollout_is_done_once_its_replicas_take_calls_of_each_router(tmp_path: Path) -> None:
    async with running_controller(launches=True, state=tmp_path / "state") as mesh, AsyncExitStack() as stack:
        router = await stack.enter_async_context(FakeRouter(mesh.channel, "r"))
        applied = await mesh.apply(MESH % "app:One")
        first = f"rollout/v1@{applied.revision}"
        assert list(applied.operations) == [f"revision/{applied.revision}", first]
        (operation,) = await operations(mesh, first)
        assert (operation.done, operation.completed, operation.total) == (False, 0, 1)
        assert list(operation.pending) == ["v1: 0 of 1 replicas ready"]
        waits = waiting(mesh, first)
        (replica_id,) = await mesh.wait_for_launches(1)
        await make_ready(mesh, stack, replica_id)
        await router.wait_for(lambda table: any(it.replicas for it in table.backends), "the replica")
        await router.acknowledge()
        (operation,) = await operations(mesh, first)
        assert not operation.done
        assert "routers: r not linked to all replicas of v1 yet" in operation.pending
        await router.acknowledge(replica_id)
        (operation,) = await within(waits, "the operation")
        assert operation == Operation(name=first, done=True, completed=1, total=1)
        # A later change takes its place; the next controller says so, too.
        waits = waiting(mesh, second := f"rollout/v1@{(await mesh.apply(MESH % 'app:Two')).revision}")
        await is_waiting(mesh)
        revision = (await mesh.apply(MESH % "app:Three")).revision
        assert [it.failure for it in await within(waits, "the operation")] == [f"replaced by revision {revision}"]
        async with running_controller(launches=True, state=as_if_killed(tmp_path / "state")) as after:
            (operation,) = await operations(after, second)
            assert (operation.done, operation.failure) == (True, f"replaced by revision {revision}")
            (operation,) = await operations(after, f"rollout/v1@{revision}")
            assert not operation.done


async def test_a_drain_is_done_once_that_process_has_ended() -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH % "app:One")
        async with FakeReplica(mesh.channel, "v1", "a") as replica:
            await replica.report("READY")
            drained = await mesh.operator.DrainReplica(pb.DrainReplicaRequest(replica_id="a"))
            name = f"drain/a@{replica.incarnation}"
            assert list(drained.operations) == [name]
            (operation,) = await operations(mesh, name)
            assert not operation.done
            assert list(operation.pending) == ["a draining, with 0 calls left"]
            waits = waiting(mesh, name)
            await is_waiting(mesh)
            await replica.report("STOPPED")
            (operation,) = await within(waits, "the operation")
            assert operation == Operation(name=name, done=True, completed=1, total=1)
        async with FakeReplica(mesh.channel, "v1", "a") as replica:
            await replica.report("READY")
            assert [it.done for it in await operations(mesh, name)] == [True], "another process is no matter"


async def test_a_shift_is_done_when_it_is_complete_and_fails_when_it_is_ended() -> None:
    async with running_controller() as mesh:
        await mesh.apply('backends: {v1: {handler: "a:A"}, v2: {handler: "a:B"}}\nendpoints: {e: {traffic: {v1: 1.0}}}')
        every = duration_pb2.Duration(seconds=3_600)
        request = pb.ShiftTrafficRequest(endpoint="e", weights={"v2": 1.0}, step=0.5, every=every)
        shifted = await mesh.operator.ShiftTraffic(request)
        assert list(shifted.operations) == [f"revision/{shifted.revision}", "shift/e"]
        (operation,) = await operations(mesh, "shift/e")
        assert (operation.done, operation.completed, operation.total) == (False, 0, 2)
        waits = waiting(mesh, "shift/e")
        await is_waiting(mesh)
        await mesh.operator.Rollback(pb.RollbackRequest(endpoint="e"))
        (operation,) = await within(waits, "the operation")
        assert operation.done
        assert operation.failure


@pytest.mark.parametrize(
    ("names", "seconds", "field", "why"),
    [
        ([], 0, "names", "must be 1 to 1000 names of operations, are 0"),
        (["revision/1"] * 1_001, 0, "names", "must be 1 to 1000 names of operations, are 1001"),
        (["revision/1"], 601, "timeout", "must be 0 to 600 s, is 601 s"),
        (["revision/1"], -1, "timeout", "must be 0 to 600 s, is -1 s"),
        (["revision/99"], 0, "names", "revision/99 is to come: the configuration is at revision "),
        (["rollout/v1@99"], 0, "names", "rollout/v1@99 is to come: the configuration is at revision "),
        (["rollout/no@1"], 0, "names", "rollout/no@1: there was no backend 'no' at that revision"),
        (["shift/e"], 0, "names", "shift/e: no shift of 'e' is known"),
        (["what/e"], 0, "names", "'what/e' is no operation: take a name from the `operations` of a response"),
        (["revision/one"], 0, "names", "'revision/one' is no operation"),
        (["drain/a"], 0, "names", "'drain/a' is no operation"),
    ],
)
async def test_what_is_no_operation_is_refused(names: list[str], seconds: int, field: str, why: str) -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH % "app:One")
        error = await refused(operations(mesh, *names, within_s=seconds))
        assert from_rpc_error(error).reason is Reason.BAD_REQUEST
        assert violations(error)[field].startswith(why)


async def test_one_caller_leaves_waits_to_others() -> None:
    async with running_controller(max_operation_waits=8) as mesh, AsyncExitStack() as stack:
        await stack.enter_async_context(FakeRouter(mesh.channel, "r"))
        name = f"revision/{(await mesh.apply(MESH % 'app:One')).revision}"
        waits = mesh.controller.operations

        def wait_as(who: str) -> asyncio.Task[list[WaitedOperation]]:
            context = copy_context()
            context.run(CALLER.set, Identity(name=who, roles=frozenset({Role.OPERATOR})))
            return asyncio.create_task(waits.wait([name], 60), context=context)

        greedy = [wait_as("client/greedy") for _ in range(6)]
        await wait_until(lambda: waits.waiting == 6, what="that it waits")
        with pytest.raises(QuotaExceeded, match="rpcs of this caller"):
            await within(wait_as("client/greedy"), "the refusal")
        other = wait_as("client/other")
        await wait_until(lambda: waits.waiting == 7, what="that the other waits")
        for each in (*greedy, other):
            each.cancel()
        await wait_until(lambda: waits.waiting == 0, what="that none waits")


async def test_a_change_is_found_right_after_another_look() -> None:
    async with running_controller() as mesh:
        first = f"revision/{(await mesh.apply(MESH % 'app:One')).revision}"
        await operations(mesh, first)
        second = f"revision/{(await mesh.apply(MESH % 'app:Two')).revision}"
        assert [it.name for it in await operations(mesh, second)] == [second]


async def test_waiting_rpcs_are_bounded_and_end_when_the_controller_leads_no_more(tmp_path: Path) -> None:
    async with running_controller(state=tmp_path / "state", max_operation_waits=1) as mesh, AsyncExitStack() as stack:
        await stack.enter_async_context(FakeRouter(mesh.channel, "r"))
        name = f"revision/{(await mesh.apply(MESH % 'app:One')).revision}"
        waits = waiting(mesh, name)
        await is_waiting(mesh)
        error: Any = await refused(operations(mesh, name))
        assert from_rpc_error(error).reason is Reason.QUOTA_EXCEEDED
        assert "max_operation_waits" in str(error)
        mesh.controller.operations.close()
        error = await refused(within(waits, "the end of the rpc"))
        assert from_rpc_error(error).reason is Reason.NOT_LEADER
    async with running_controller(state=tmp_path / "state") as mesh:
        assert [it.done for it in await operations(mesh, name, within_s=60)] == [True], "no router is there"
