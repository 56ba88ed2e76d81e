"""Devices of a controller: what is refused with which numbers, how rollouts proceed, and what operators see."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from controller_service.core.reconciling import rollouts
from slotmesh.cli.checking.findings import SeenMesh
from slotmesh.cli.checking.member_findings import backends as backend_findings
from slotmesh.cli.commands.describe import print_backend
from slotmesh.cli.commands.status import print_tables, status_document
from slotmesh.cli.operator import Operator
from slotmesh.convert.specification import mesh_to_wire
from slotmesh.spec.document import parse_mesh
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.contract.controller.test_launching import make_ready
from tests.contract.controller.test_operations import operations
from tests.support.controllers import Controlled, eventually, running_controller, violations
from tests.support.fakes.members import FakeReplica
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio

LACKS = "backend v1: env.TOKEN: file /run/token cannot be read: No such file or directory"
NONE_READY = "v1: 0 of 4 new replicas ready"
V1 = "backends: {v1: {handler: 'app:%s', num_replicas: %d, devices: {cuda: 1}, min_ready: 0s, graceful_timeout: 0s}}"


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[Controlled]:
    async with running_controller(launches=True, devices="cuda=0-3,fpga=a,b") as mesh:
        yield mesh


async def refused(mesh: Controlled, text: str) -> dict[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await mesh.apply(text)
    return violations(caught.value)


async def planned(mesh: Controlled, text: str) -> pb.ApplyMeshResponse:
    request = pb.ApplyMeshRequest(mesh=mesh_to_wire(parse_mesh(text)), merge=True, validate_only=True)
    response: pb.ApplyMeshResponse = await mesh.operator.ApplyMesh(request)
    return response


def devices_of(mesh: Controlled) -> dict[str, str]:
    assert mesh.launcher is not None
    return {it.replica_id: it.order.devices for it in mesh.launcher.observe()}


async def test_what_does_not_fit_is_refused_with_the_numbers(mesh: Controlled) -> None:
    await mesh.apply(V1 % ("One", 3))
    found = await refused(mesh, "backends: {v2: {handler: 'app:Two', num_replicas: 4, devices: {cuda: 0.5}}}")
    assert found == {
        'mesh.backends[0].devices["cuda"]': "all backends together want 5 of cuda, which has 4: v1 3 (3 × 1),"
        " v2 2 (4 × 0.5); take fewer replicas or devices, or add some to --devices"
    }
    (text,) = (await refused(mesh, "backends: {v2: {handler: 'app:Two', autoscale: {}, devices: {cuda: 1}}}")).values()
    assert "want 13 of cuda, which has 4: v2 10 (10 × 1), v1 3 (3 × 1)" in text
    (text,) = (await refused(mesh, "backends: {v2: {handler: 'app:Two', devices: {cuda: 5}}}")).values()
    assert "want 8 of cuda, which has 4: v2 5 (1 × 5), v1 3 (3 × 1)" in text
    (text,) = (await refused(mesh, "backends: {v2: {handler: 'a:B', num_replicas: 3, devices: {fpga: 0.6}}}")).values()
    assert "want 1.8 of fpga, which has 2, and these shares do not fit into whole devices" in text
    (text,) = (await refused(mesh, "backends: {v2: {handler: 'a:B', devices: {tpu: 1}}}")).values()
    assert text == "no pool of this controller's --devices has this name (there are cuda, fpga)"
    await mesh.apply("backends: {v2: {handler: 'app:Two', num_replicas: 2, devices: {cuda: 0.5}}}")


async def test_a_change_by_any_way_is_checked(mesh: Controlled) -> None:
    await mesh.apply(V1 % ("One", 4))
    revision = (await mesh.operator.ListRevisions(pb.ListRevisionsRequest(page_size=1))).revisions[0].revision
    await mesh.apply(V1 % ("One", 1))
    await mesh.apply("backends: {v2: {handler: 'app:Two', num_replicas: 3, devices: {cuda: 1}}}")
    request = pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="v2", num_replicas=4))
    request.update_mask.paths.append("num_replicas")
    with pytest.raises(grpc.aio.AioRpcError, match="want 5 of cuda, which has 4"):
        await mesh.operator.ApplyBackend(request)
    with pytest.raises(grpc.aio.AioRpcError, match="want 7 of cuda, which has 4"):
        await mesh.operator.ApplyMesh(pb.ApplyMeshRequest(mesh=mesh_to_wire(parse_mesh(V1 % ("One", 4)))))
    await mesh.operator.Rollback(pb.RollbackRequest(revision=revision))  # v2 is none of that revision


async def test_a_rollout_without_a_spare_device_stops_one_before_it_starts_one(mesh: Controlled) -> None:
    async with AsyncExitStack() as stack:
        await mesh.apply(V1 % ("One", 4))
        first = await mesh.wait_for_launches(4)
        assert sorted(devices_of(mesh).values()) == ["cuda=0", "cuda=1", "cuda=2", "cuda=3"]
        await make_ready(mesh, stack, *first)
        (warning,) = (await planned(mesh, V1 % ("Two", 4))).warnings
        assert warning.startswith("backend/v1: no device is spare (1 of cuda is wanted, and 4 of 4 are held (by v1-")
        assert warning.endswith("): its rollout stops a replica before it starts one")
        assert mesh.launcher is not None
        await mesh.apply(V1 % ("Two", 4))
        for number in range(1, 5):
            new = (await mesh.wait_for_launches(4 + number))[-1]
            assert len(devices_of(mesh)) == 4
            assert len(mesh.launcher.stopped) == number
            await make_ready(mesh, stack, new)


async def test_no_replica_makes_way_while_the_next_one_could_not_start(
    mesh: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "LOOPING_AFTER", 1_000)  # it is not rolled back
    async with AsyncExitStack() as stack:
        await mesh.apply(V1 % ("One", 4))
        await make_ready(mesh, stack, *await mesh.wait_for_launches(4))
        assert mesh.launcher is not None
        watching = mesh.operator.WatchEvents(pb.WatchEventsRequest())
        await watching.initial_metadata()
        mesh.launcher.deferral = "its interpreter is looked at"
        rollout = f"rollout/v1@{(await mesh.apply(V1 % ('Two', 4))).revision}"

        async def pending() -> str:
            (operation,) = await operations(mesh, rollout)
            return operation.pending[0] if len(operation.pending[0]) > len(NONE_READY) else ""

        assert await eventually(pending, what="why") == f"{NONE_READY}; its interpreter is looked at"
        assert not [it for it in (await mesh.replicas()).values() if it.error]
        mesh.launcher.deferral, mesh.launcher.refusal = "", LACKS
        mesh.controller.loop.retry_now()

        async def failed() -> list[str]:
            return [it.error for it in (await mesh.replicas()).values() if it.error]

        assert set(await eventually(failed, what="the failure")) == {LACKS}
        assert (await pending()).endswith(f" failed: {LACKS}")
        while (event := await within(watching.read(), "an event")).kind != pb.EVENT_KIND_REPLICA_FAILED:
            pass
        assert LACKS in event.message
        watching.cancel()
        assert not mesh.launcher.stopped
        assert len(mesh.launcher.started) == 4
        mesh.launcher.refusal = ""
        await mesh.wait_for_launches(5)
        assert len(mesh.launcher.stopped) == 1


async def test_no_replica_makes_way_after_an_operator_wants_it_again(
    mesh: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the next one can be started is found out in the meantime."""
    looks, may_end = asyncio.Event(), asyncio.Event()

    async def prepare(_order: object) -> None:
        looks.set()
        await may_end.wait()

    async with AsyncExitStack() as stack:
        await mesh.apply(V1 % ("One", 4))
        await make_ready(mesh, stack, *await mesh.wait_for_launches(4))
        store = mesh.controller.store
        await wait_until(lambda: "v1" in store.read().rollouts, what="the first rollout")
        assert mesh.launcher is not None
        monkeypatch.setattr(mesh.launcher, "prepare", prepare)
        await mesh.apply(V1 % ("Two", 4))
        await within(looks.wait(), "the check")
        rollout = f"rollout/v1@{(await mesh.apply(V1 % ('One', 4))).revision}"
        may_end.set()

        async def is_done() -> bool:
            return bool((await operations(mesh, rollout))[0].done)

        await eventually(is_done, what="the old settings are in force")
        assert not mesh.launcher.stopped


async def test_a_start_that_stays_impossible_is_rolled_back_before_any_replica_made_way(mesh: Controlled) -> None:
    async with AsyncExitStack() as stack:
        await mesh.apply(V1 % ("One", 4))
        await make_ready(mesh, stack, *await mesh.wait_for_launches(4))
        assert mesh.launcher is not None
        mesh.launcher.refusal = LACKS
        store = mesh.controller.store
        await wait_until(lambda: "v1" in store.read().rollouts, what="the first rollout")
        await mesh.apply(V1 % ("Two", 4))
        await wait_until(lambda: store.read().rollouts["v1"].why, what="that it is rolled back")
        assert store.read().rollouts["v1"].why.endswith(f"the newest so: {LACKS}")
        assert not mesh.launcher.stopped


async def test_no_replica_makes_way_where_the_next_one_would_find_no_device_even_then(mesh: Controlled) -> None:
    async with AsyncExitStack() as stack:
        await mesh.apply(V1 % ("One", 4))
        await make_ready(mesh, stack, *await mesh.wait_for_launches(4))
        assert mesh.launcher is not None
        mesh.launcher.pools = {"cuda": (), "fpga": ("a",)}
        await mesh.apply(V1 % ("Two", 4))

        async def deferred() -> str:
            return str((await mesh.operator.GetBackend(pb.GetBackendRequest(name="v1"))).backend.status.deferred_start)

        why = await eventually(deferred, what="the reason")
        assert why == "no device would be free: 1 of cuda is wanted, and 0 of 0 are held"
        assert not mesh.launcher.stopped
        mesh.launcher.pools = {"cuda": ("0",)}
        mesh.controller.loop.retry_now()
        await mesh.wait_for_launches(5)


async def test_a_spare_device_lets_a_replica_start_first(mesh: Controlled) -> None:
    async with AsyncExitStack() as stack:
        await mesh.apply(V1 % ("One", 3))
        await make_ready(mesh, stack, *await mesh.wait_for_launches(3))
        assert not (await planned(mesh, V1 % ("Two", 3))).warnings
        await mesh.apply(V1 % ("Two", 3))
        await mesh.wait_for_launches(4)
        assert mesh.launcher is not None
        assert not mesh.launcher.stopped


async def test_a_backend_that_could_never_be_replaced_is_refused(mesh: Controlled) -> None:
    text = V1.replace("min_ready", "max_unavailable: 0, min_ready")
    (problem,) = (await refused(mesh, text % ("One", 4))).values()
    assert problem.startswith("0 leaves no way to replace a replica: all backends together want 4 of cuda, which has 4")
    await mesh.apply(text % ("One", 3))


async def test_a_start_that_finds_no_device_waits_for_the_end_of_a_replica_of_any_backend(mesh: Controlled) -> None:
    await mesh.apply(V1 % ("One", 4))
    ids = await mesh.wait_for_launches(4)
    assert mesh.launcher is not None
    mesh.launcher.unkillable.update(ids)
    mesh.launcher.stubborn.update(ids)
    await mesh.apply(V1 % ("One", 2) + "\n")
    await mesh.apply("backends: {v2: {handler: 'app:Two', num_replicas: 1, devices: {cuda: 1}}}")

    async def deferred() -> str:
        return str((await mesh.operator.GetBackend(pb.GetBackendRequest(name="v2"))).backend.status.deferred_start)

    why = await eventually(deferred, what="the reason")
    assert why.startswith("1 of cuda is wanted, and 4 of 4 are held (by v1-")
    assert [it for it in await mesh.replicas() if it.startswith("v2")] == [], "it is no failure"
    ended = mesh.launcher.stopped[0]
    freed = devices_of(mesh)[ended]
    mesh.launcher.exit(ended, "exited with status 0")
    (new,) = [it for it in await mesh.wait_for_launches(5) if it.startswith("v2")]
    assert devices_of(mesh)[new] == freed
    for replica_id in mesh.launcher.stopped:
        mesh.launcher.exit(replica_id)
    mesh.launcher.unkillable.clear()
    mesh.launcher.stubborn.clear()


async def test_fewer_devices_than_before_refuse_only_what_wants_more(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running_controller(launches=True, state=state, devices="cuda=0-3") as mesh:
        await mesh.apply(V1 % ("One", 4))
        await mesh.wait_for_launches(4)
    async with running_controller(launches=True, state=state, devices="cuda=0") as mesh:
        await mesh.apply(V1 % ("Two", 4))
        await mesh.apply(V1 % ("Two", 3))
        await mesh.apply("backends: {v2: {handler: 'app:Two'}}")
        (problem,) = (await refused(mesh, V1 % ("Two", 4))).values()
        assert "want 4 of cuda, which has 1: v1 4 (4 × 1)" in problem


async def test_operators_see_devices_and_their_holders(mesh: Controlled) -> None:
    await mesh.apply("backends: {v1: {handler: 'app:One', num_replicas: 3, devices: {cuda: 1, fpga: 0.5}}}")
    ids = await mesh.wait_for_launches(3)
    out = io.StringIO()
    async with Operator.at(mesh.controller.address) as operator:
        snapshot = await operator.snapshot()
        print_tables("here", snapshot, out)
        described = await operator.send(pb.GetBackendRequest(name="v1"))
        print_backend(described, snapshot.members.replicas, out)
    document = status_document("here", snapshot)
    assert document["replicas"][0]["devices"][0].startswith("cuda=")
    cuda, fpga = document["device_pools"]
    assert [it["free_share"] for it in cuda["devices"]] == [0.0, 0.0, 0.0, 1.0]
    assert [it["free_share"] for it in fpga["devices"]] == [0.0, 0.5]
    assert sorted(it["replica_ids"][0] for it in cuda["devices"][:3]) == sorted(ids)
    assert out.getvalue().count("Devices") == 2
    assert [it.name for it in described.backend.status.device_pools] == ["cuda", "fpga"]


async def test_replicas_that_another_system_starts_are_compared_with_their_backend() -> None:
    async with running_controller() as mesh, AsyncExitStack() as stack:
        await mesh.apply("backends: {v1: {devices: {cuda: 1, fpga: 0.5}}}")
        for name, devices in (("right", ("cuda=0", "fpga=a@0.5")), ("wrong", ("cuda=0", "cuda=1")), ("none", ())):
            replica = FakeReplica(mesh.channel, "v1", name)
            replica.devices = (*devices, "no device", "cuda=1,cuda=2")
            await stack.enter_async_context(replica)
            await replica.report("READY")
        replicas = await mesh.replicas()
        assert replicas["right"].devices == ["cuda=0", "fpga=a@0.5"]
        wanted = "differ from what its backend wants (cuda: 1, fpga: 0.5)"
        assert {name: it.warning for name, it in replicas.items()} == {
            "right": "",
            "wrong": f"its --devices (cuda: 2) {wanted}",
            "none": f"its --devices (none) {wanted}",
        }
        async with Operator.at(mesh.controller.address) as operator:
            snapshot = await operator.snapshot()
        sampled = await mesh.operator.GetSnapshot(pb.GetSnapshotRequest())
        assert {it.replica.warning for it in sampled.replicas} == {it.warning for it in replicas.values()}
        assert not snapshot.device_pools
        findings = [*backend_findings(SeenMesh(now=0.0, own_version="", snapshot=snapshot, answers=()))]
        assert [it.subject for it in findings if "--devices" in it.text] == ["replica/none", "replica/wrong"]
