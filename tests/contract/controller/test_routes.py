"""Routes of HTTP at a controller: stored, merged, listed, deleted, rolled back, and pushed to who watches them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from slotmesh.convert.specification import mesh_to_wire
from slotmesh.errors import Reason
from slotmesh.spec.document import parse_mesh
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import http_route_service_pb2 as routes_pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1.http_route_service_pb2_grpc import HttpRouteServiceStub
from tests.support.controllers import Controlled, running_controller, undo_newest, violations

ONE = "routes: {/a: {endpoint: e, method: m}}"
TWO = "routes: {/a: {endpoint: e, method: n}, '/u/{name}': {endpoint: u, method: show, methods: [GET]}}"


async def merge(mesh: Controlled, yaml: str, **more: Any) -> pb.ApplyMeshResponse:
    request = pb.ApplyMeshRequest(mesh=mesh_to_wire(parse_mesh(yaml)), merge=True, **more)
    response: pb.ApplyMeshResponse = await mesh.operator.ApplyMesh(request)
    return response


async def listed(mesh: Controlled) -> dict[str, tuple[str, str, list[str]]]:
    response = await mesh.operator.ListHttpRoutes(pb.ListHttpRoutesRequest())
    return {it.name: (it.endpoint, it.method, list(it.methods)) for it in response.routes}


@pytest.mark.asyncio
async def test_routes_are_stored_merged_and_pruned(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running_controller(state=state) as mesh:
        assert list((await merge(mesh, ONE)).created) == ["route/a"]
        applied = await merge(mesh, TWO)
        assert (list(applied.updated), list(applied.created)) == (["route/a"], ["route/u/{name}"])
        assert [(it.resource, it.field, it.before, it.after) for it in applied.fields] == [
            ("route/a", "method", "m", "n"),
            ("route/u/{name}", "endpoint", "unset", "u"),
            ("route/u/{name}", "method", "unset", "show"),
            ("route/u/{name}", "methods", "unset", "[GET]"),
        ]
    async with running_controller(state=state) as mesh:
        assert await listed(mesh) == {"/a": ("e", "n", ["POST"]), "/u/{name}": ("u", "show", ["GET"])}
        assert list((await merge(mesh, ONE, prune=True)).deleted) == ["route/u/{name}"]
        back = await undo_newest(mesh)
        assert (list(back.created), list(back.updated)) == (["route/u/{name}"], ["route/a"])
        history = await mesh.operator.ListRevisions(pb.ListRevisionsRequest(page_size=1))
        [change] = [it for it in history.revisions[0].changes if it.resource == "route/a"]
        assert list(change.fields) == ["method"]


@pytest.mark.asyncio
async def test_what_a_file_and_somebody_else_have_changed_is_a_conflict() -> None:
    async with running_controller() as mesh:
        await merge(mesh, ONE)
        await mesh.apply("routes: {/a: {endpoint: other, method: m}}")
        unrelated = await merge(mesh, "routes: {/a: {endpoint: e, method: n}}")
        assert list(unrelated.updated) == ["route/a"]
        assert await listed(mesh) == {"/a": ("other", "n", ["POST"])}
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await merge(mesh, "routes: {/a: {endpoint: third, method: n}}")
        assert from_rpc_error(refused.value).reason is Reason.APPLY_CONFLICT


@pytest.mark.asyncio
async def test_a_route_of_the_shape_of_one_that_is_there_is_refused() -> None:
    async with running_controller() as mesh:
        await mesh.apply("routes: {'/u/{a}': {endpoint: e, method: m}}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.apply("routes: {'/u/{b}': {endpoint: e, method: m}}")
        assert violations(refused.value) == {
            "mesh.routes[0].name": "matches the same paths as /u/{a}: leave one of them out"
        }
        renamed = await mesh.apply("routes: {'/u/{b}': {endpoint: e, method: m}}", prune=True)
        assert (list(renamed.created), list(renamed.deleted)) == (["route/u/{b}"], ["route/u/{a}"])


@pytest.mark.asyncio
async def test_a_route_is_deleted_on_the_terms_of_other_changes() -> None:
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        planned = await mesh.operator.DeleteHttpRoute(pb.DeleteHttpRouteRequest(name="/a", validate_only=True))
        assert (planned.change, set(await listed(mesh))) == (pb.CHANGE_DELETED, {"/a", "/u/{name}"})
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.operator.DeleteHttpRoute(pb.DeleteHttpRouteRequest(name="/a", expected_revision=0))
        assert from_rpc_error(refused.value).reason is Reason.REVISION_CONFLICT
        await mesh.operator.DeleteHttpRoute(pb.DeleteHttpRouteRequest(name="/a"))
        assert set(await listed(mesh)) == {"/u/{name}"}
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.operator.DeleteHttpRoute(pb.DeleteHttpRouteRequest(name="/a"))
        assert from_rpc_error(refused.value).reason is Reason.ROUTE_NOT_FOUND


@pytest.mark.asyncio
async def test_who_watches_gets_all_routes_at_once_and_again_when_one_changes() -> None:
    async with running_controller() as mesh:
        first = await mesh.apply(ONE)
        watch: Any = HttpRouteServiceStub(mesh.channel).WatchHttpRoutes(routes_pb.WatchHttpRoutesRequest())
        state = await watch.read()
        assert ([it.name for it in state.routes], state.revision) == (["/a"], first.revision)
        assert state.generation == mesh.controller.store.generation
        await mesh.apply("backends: {b: {handler: 'a:B'}}")  # changes no route, and is not told
        second = await mesh.apply(TWO)
        async with asyncio.timeout(10):
            state = await watch.read()
        assert ([it.name for it in state.routes], state.revision) == (["/a", "/u/{name}"], second.revision)
        watch.cancel()


@pytest.mark.asyncio
async def test_a_route_is_applied_and_read_by_its_path() -> None:
    async with running_controller() as mesh:
        route = mesh_pb2.HttpRoute(name="/u/{name}", endpoint="u", method="show", methods=["GET"])
        applied = await mesh.operator.ApplyHttpRoute(pb.ApplyHttpRouteRequest(route=route))
        assert applied.change == pb.CHANGE_CREATED
        read = await mesh.operator.GetHttpRoute(pb.GetHttpRouteRequest(name="/u/{name}"))
        route.etag = read.route.etag
        assert (read.route, read.revision) == (route, applied.revision)
        await mesh.apply(ONE)
        found = await mesh.operator.ListHttpRoutes(pb.ListHttpRoutesRequest(endpoint="u"))
        assert [it.name for it in found.routes] == ["/u/{name}"]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.operator.GetHttpRoute(pb.GetHttpRouteRequest(name="/u"))
        assert from_rpc_error(refused.value).reason is Reason.ROUTE_NOT_FOUND
