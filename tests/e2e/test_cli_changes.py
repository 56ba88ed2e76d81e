"""`slotmesh scale`, `drain` and `delete` against a real controller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
import yaml

from controller_service.servicer import ControllerServicer
from slotmesh.v1 import controller_service_pb2 as pb
from tests.support.controllers import Controlled, running_controller
from tests.support.fakes.members import FakeReplica
from tests.support.shell import Said, slotmesh
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

FILE = """
backends:
  v1: {handler: "app:One", num_replicas: 2}
  v2: {handler: "app:Two", max_queue_time: 250ms}
endpoints:
  e: {traffic: {v1: 1.0}, shadows: {v2: 0.5}}
"""


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[Controlled]:
    async with running_controller() as mesh:
        await mesh.apply(FILE)
        yield mesh


async def said(mesh: Controlled, *arguments: str) -> Said:
    return await slotmesh(*arguments, env={"SLOTMESH_ADDRESS": mesh.controller.address})


async def test_scaling_sets_one_setting_and_shows_it(mesh: Controlled) -> None:
    before = mesh.controller.store.read()
    planned = await said(mesh, "scale", "v1", "5", "--dry-run")
    assert (planned.status, planned.err) == (0, "~ backend/v1\n    num_replicas: 2 -> 5\n")
    assert planned.out.splitlines()[0] == "would be updated  backend/v1"
    assert mesh.controller.store.read() is before

    done, other = await asyncio.gather(
        said(mesh, "scale", "backend/v1", "5"), said(mesh, "scale", "v2", "0", "-o", "json")
    )
    assert (done.status, done.out.splitlines()[0]) == (0, "updated   backend/v1")
    assert (other.status, json.loads(other.out)["updated"]) == (0, ["backend/v2"])
    now = mesh.controller.store.read().backends
    assert (now["v1"].num_replicas, now["v2"].num_replicas) == (5, 0)
    assert now["v2"].max_queue_time_s == 0.25
    again = await said(mesh, "scale", "v1", "5", "-o", "name")
    assert (again.status, again.out, again.err) == (0, "backend/v1\n", "")


async def test_scaling_to_zero_warns_of_endpoints_that_lead_there(mesh: Controlled) -> None:
    warned, shadow = await asyncio.gather(
        said(mesh, "scale", "v1", "0", "--dry-run"), said(mesh, "scale", "v2", "0", "--dry-run")
    )
    assert "slotmesh: warning: endpoint/e leads to v1, which should have no replica" in warned.err
    assert (warned.status, shadow.status, "warning" in shadow.err) == (0, 0, False)


@pytest.mark.long
async def test_what_cannot_be_scaled_is_told_with_the_way_out(mesh: Controlled) -> None:
    unknown, other_kind, negative = await asyncio.gather(
        said(mesh, "scale", "v11", "3"), said(mesh, "scale", "endpoint/e", "3"), said(mesh, "scale", "v1", "-3")
    )
    assert (unknown.status, unknown.err) == (1, "there is no backend/v11; did you mean backend/v1?\n")
    assert (other_kind.status, "takes backend/NAME, is endpoint/e" in other_kind.err) == (2, True)
    assert negative.status == 2


@pytest.mark.long
async def test_scaling_can_wait_for_replicas_and_says_what_is_lacking() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as members:
        await mesh.apply('backends: {v1: {handler: "app:One", num_replicas: 0}}')
        late = await said(mesh, "scale", "v1", "1", "--wait", "--timeout=200ms")
        assert (late.status, late.out.splitlines()[0]) == (3, "updated   backend/v1")
        assert "scaled, but not ready within 200ms:\n  v1: 0 of 1 replicas ready" in late.err
        (replica_id,) = await mesh.wait_for_launches(1)
        replica = await members.enter_async_context(FakeReplica(mesh.channel, "v1", replica_id))
        await replica.report("READY")
        ready = await said(mesh, "scale", "v1", "1", "--wait")
        assert (ready.status, ready.out.splitlines()[0]) == (0, "unchanged backend/v1")
        assert ready.err.endswith("slotmesh: ready\n"), "it may first have waited for the min_ready of a young replica"


async def test_draining_is_told_to_the_replica_and_can_be_waited_for(mesh: Controlled) -> None:
    async with FakeReplica(mesh.channel, "v1", "a1") as first, FakeReplica(mesh.channel, "v1", "a2") as second:
        await first.report("READY")
        await second.report("READY")
        told, unknown = await asyncio.gather(
            said(mesh, "drain", "replica/a1", "-o", "yaml"), said(mesh, "drain", "a2", "a11")
        )
        assert (told.status, yaml.safe_load(told.out)) == (0, {"draining": ["replica/a1"]})
        assert (unknown.status, unknown.err) == (1, "there is no replica/a11; did you mean replica/a1?\n")
        assert first.drains
        assert not second.drains

        late = await said(mesh, "drain", "a1", "--wait", "--timeout=200ms")
        assert (late.status, late.out) == (3, "")
        assert late.err == "draining, but not ended within 200ms:\n  a1 draining, with 0 calls left\n"
        waiting = asyncio.create_task(said(mesh, "drain", "a1", "a2", "--wait"))
        await wait_until(lambda: second.drains, what="the order to drain")
        await first.report("STOPPED")
        await second.report("STOPPED")
        assert await waiting == Said(0, "drained   replica/a1\ndrained   replica/a2\n", "")


@pytest.mark.long
async def test_what_is_in_use_or_not_there_is_not_deleted_and_neither_is_the_rest(mesh: Controlled) -> None:
    before = mesh.controller.store.read()
    in_use, shadowing, missing, bare, replica = await asyncio.gather(
        said(mesh, "delete", "backend/v1"),
        said(mesh, "delete", "backend/v2"),
        said(mesh, "delete", "endpoint/e", "backend/v3"),
        said(mesh, "delete", "v1"),
        said(mesh, "delete", "replica/a"),
    )
    for refused in (in_use, shadowing):
        assert (refused.status, refused.out) == (1, "")
        assert "is in use by endpoint/e, nothing was deleted: take it out with `slotmesh traffic e" in refused.err
    assert (missing.status, "there is no backend/v3; did you mean backend/v" in missing.err) == (1, True)
    assert (bare.status, "backend/v1 or endpoint/v1" in bare.err) == (2, True)
    assert (replica.status, "`slotmesh drain`" in replica.err) == (2, True)
    assert mesh.controller.store.read() is before


async def test_endpoints_are_deleted_before_the_backends_that_they_name(mesh: Controlled) -> None:
    planned = await said(mesh, "delete", "backend/v1", "backend/v2", "endpoint/e", "--dry-run")
    assert planned.err.splitlines() == ["- endpoint/e", "- backend/v1", "- backend/v2"]
    assert set(mesh.controller.store.read().backends) == {"v1", "v2"}
    done = await said(mesh, "delete", "backend/v1", "endpoint/e", "-o", "json")
    assert (done.status, json.loads(done.out)["deleted"]) == (0, ["endpoint/e", "backend/v1"])
    now = mesh.controller.store.read()
    assert (set(now.backends), set(now.endpoints)) == ({"v2"}, set())
    back = await said(mesh, "rollback")
    assert (back.status, back.out.splitlines()[:2]) == (0, ["created   backend/v1", "created   endpoint/e"])
    assert [it.name for it in (await mesh.operator.ListBackends(pb.ListBackendsRequest())).backends] == ["v1", "v2"]


async def test_a_controller_that_deletes_one_at_a_time_is_recognized_and_the_way_back_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply_mesh = ControllerServicer.ApplyMesh

    async def older(self: Any, request: pb.ApplyMeshRequest, context: Any) -> pb.ApplyMeshResponse:
        request.ClearField("deletions")
        return await apply_mesh(self, request, context)

    monkeypatch.setattr(ControllerServicer, "ApplyMesh", older)
    async with running_controller() as mesh:
        await mesh.apply(FILE)
        before = mesh.controller.store.read()
        done = await said(mesh, "delete", "backend/v1", "endpoint/e")
        undo = f"`slotmesh rollback {before.configured_at}`"
        assert done.status == 0
        assert (
            done.err.splitlines()[-1] == f"slotmesh: this controller made a change of each; to undo all of it: {undo}"
        )
        assert (await said(mesh, "rollback", str(before.configured_at))).status == 0
        assert mesh.controller.store.read().backends == before.backends
