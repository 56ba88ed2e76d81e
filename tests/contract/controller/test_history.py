"""The history of the configuration, and going back in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import Controlled, running_controller, undo_newest, violations

MESH = """
backends:
  v1: {num_replicas: 2, user_config: {secret: hunter2}}
  v2: {}
endpoints:
  e: {traffic: {v1: 1.0}}
"""


@pytest_asyncio.fixture(params=["memory", "file"])
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Controlled]:
    state = tmp_path / "state" if request.param == "file" else None
    async with running_controller(state=state) as mesh:
        yield mesh


async def revisions(mesh: Controlled, **page: Any) -> pb.ListRevisionsResponse:
    response: pb.ListRevisionsResponse = await mesh.operator.ListRevisions(pb.ListRevisionsRequest(**page))
    return response


async def set_traffic(mesh: Controlled, **weights: float) -> int:
    request = pb.SetTrafficRequest(endpoint="e", traffic=mesh_pb2.TrafficPolicy(weights=weights))
    response = await mesh.operator.SetTraffic(request, metadata=(("slotmesh-client", "a test"),))
    return int(response.revision)


async def configuration(mesh: Controlled) -> list[bytes]:
    """Without the revision."""
    backends = await mesh.operator.ListBackends(pb.ListBackendsRequest())
    endpoints = await mesh.operator.ListEndpoints(pb.ListEndpointsRequest())
    backends.revision = endpoints.revision = 0
    return [it.SerializeToString(deterministic=True) for it in (backends, endpoints)]


@pytest.mark.asyncio
async def test_each_change_is_there_with_who_made_it_and_what_it_changed_but_no_value(mesh: Controlled) -> None:
    first = (await mesh.apply(MESH)).revision
    await mesh.apply(MESH)  # nothing new
    second = await set_traffic(mesh, v1=0.9, v2=0.1)
    changed = MESH.replace("num_replicas: 2", "num_replicas: 3, max_ongoing: 5").replace("  v2: {}", "  v3: {}")
    third = (await mesh.apply(changed.replace("{v1: 1.0}", "{v3: 1.0}"), prune=True)).revision
    page = await revisions(mesh)
    assert page.revision == third
    assert [(it.revision, it.base_revision) for it in page.revisions] == [(third, second), (second, first), (first, 0)]
    newest, traffic, created = page.revisions
    assert traffic.who.startswith("a test at 127.0.0.1:")
    assert newest.who.startswith("rpc at 127.0.0.1:")
    assert traffic.time.seconds > 1_700_000_000
    told = {(it.resource, pb.Change.Name(it.change), *it.fields) for it in newest.changes}
    assert told == {
        ("backend/v1", "CHANGE_UPDATED", "num_replicas", "max_ongoing"),
        ("backend/v2", "CHANGE_DELETED"),
        ("backend/v3", "CHANGE_CREATED"),
        ("endpoint/e", "CHANGE_UPDATED", "traffic"),
    }
    assert [(it.resource, *it.fields) for it in traffic.changes] == [("endpoint/e", "traffic")]
    assert [it.resource for it in created.changes] == ["backend/v1", "backend/v2", "endpoint/e"]
    assert b"hunter2" not in page.SerializeToString()


@pytest.mark.asyncio
async def test_a_change_of_a_backend_has_its_version_before_and_after(mesh: Controlled) -> None:
    for settings in ('{version: "1"}', '{version: "2"}', '{version: "2", num_replicas: 2}'):
        await mesh.apply(f"backends: {{u: {{}}, v1: {settings}, w: {{}}}}")
    await mesh.apply("backends: {u: {}, w: {}}", prune=True)
    changes = [
        change for it in (await revisions(mesh)).revisions for change in it.changes if change.resource[-1] == "1"
    ]
    assert [(it.previous_version, it.version) for it in changes] == [("2", ""), ("2", "2"), ("1", "2"), ("", "1")]


@pytest.mark.asyncio
async def test_pages_have_all_of_it_once(mesh: Controlled) -> None:
    await mesh.apply(MESH)
    for number in range(4):
        await set_traffic(mesh, v1=1.0 - number / 10, v2=number / 10)
    whole = [it.revision for it in (await revisions(mesh)).revisions]
    assert len(whole) == 5
    token, seen = "", []
    while True:
        page = await revisions(mesh, page_size=2, page_token=token)
        seen += [it.revision for it in page.revisions]
        if not (token := page.next_page_token):
            break
        assert len(page.revisions) == 2
    assert seen == whole
    for request, field in (({"page_size": -1}, "page_size"), ({"page_token": "x"}, "page_token")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await revisions(mesh, **request)
        assert field in violations(refused.value)


@pytest.mark.asyncio
async def test_going_back_makes_a_new_revision_with_the_old_configuration(mesh: Controlled) -> None:
    first = (await mesh.apply(MESH)).revision
    before = await configuration(mesh)
    await set_traffic(mesh, v1=0.5, v2=0.5)
    await mesh.apply("endpoints: {f: }", prune=False)
    newest = (await mesh.apply("backends: {v4: {}}\nendpoints: {e: {traffic: {v4: 1.0}}}", prune=True)).revision
    there = await configuration(mesh)

    planned = await mesh.operator.Rollback(pb.RollbackRequest(revision=first, validate_only=True))
    assert (planned.rolled_back_to, planned.revision) == (first, newest)
    assert await configuration(mesh) == there
    done = await mesh.operator.Rollback(pb.RollbackRequest(revision=first))
    assert done.revision > newest
    assert sorted(done.created) == sorted(planned.created) == ["backend/v1", "backend/v2"]
    assert list(done.updated) == ["endpoint/e"]
    assert list(done.deleted) == ["backend/v4"]
    assert await configuration(mesh) == before
    record = (await revisions(mesh)).revisions[0]
    assert (record.revision, record.note) == (done.revision, f"rollback to revision {first}")

    start = await mesh.operator.Rollback(pb.RollbackRequest(revision=0, validate_only=True))
    assert (start.rolled_back_to, sorted(start.deleted)) == (0, ["backend/v1", "backend/v2", "endpoint/e"])
    # The newest change is undone: the rollback itself.
    undone = await undo_newest(mesh)
    assert undone.rolled_back_to == newest
    assert await configuration(mesh) == there


@pytest.mark.asyncio
async def test_an_endpoint_that_had_no_policy_has_none_again(mesh: Controlled) -> None:
    await mesh.apply(MESH.replace("e: {traffic: {v1: 1.0}}", "e:"))
    before = await configuration(mesh)
    await set_traffic(mesh, v1=1.0)
    await undo_newest(mesh)
    assert await configuration(mesh) == before


@pytest.mark.asyncio
async def test_what_is_not_kept_or_has_changed_meanwhile_is_refused(mesh: Controlled) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await mesh.operator.Rollback(pb.RollbackRequest(change=1))
    assert "none is kept" in violations(refused.value)["change"]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await mesh.operator.Rollback(pb.RollbackRequest())
    assert violations(refused.value).keys() == {"revision"}
    first = (await mesh.apply(MESH)).revision
    second = await set_traffic(mesh, v1=0.5, v2=0.5)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await mesh.operator.Rollback(pb.RollbackRequest(change=first))
    assert f"must be {second}, the revision of the newest change" in violations(refused.value)["change"]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await revisions(mesh, resource="e")
    assert violations(refused.value) == {"resource": "must be backend/NAME, endpoint/NAME or route/PATH, is 'e'"}
    for revision in (-1, second + 1_000):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.operator.Rollback(pb.RollbackRequest(revision=revision))
        assert "is no revision of the configuration that is kept" in violations(refused.value)["revision"]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await mesh.operator.Rollback(pb.RollbackRequest(revision=first, expected_revision=first))
    assert refused.value.code() is grpc.StatusCode.ABORTED


@pytest.mark.asyncio
async def test_the_history_outlives_the_controller(tmp_path: Path) -> None:
    async with running_controller(state=tmp_path / "state") as mesh:
        first = (await mesh.apply(MESH)).revision
        before = await configuration(mesh)
        await set_traffic(mesh, v1=0.5, v2=0.5)
        told = (await revisions(mesh)).revisions
    async with running_controller(state=tmp_path / "state") as mesh:
        assert (await revisions(mesh)).revisions == told
        await mesh.operator.Rollback(pb.RollbackRequest(revision=first))
        assert await configuration(mesh) == before
