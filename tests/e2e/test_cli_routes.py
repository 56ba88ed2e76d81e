"""Routes of HTTP by the commands of operators, and what an ingress makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support.controllers import eventually
from tests.support.http_client import http
from tests.support.mesh import MeshRun, started_mesh
from tests.support.shell import Said, slotmesh

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120), pytest.mark.long]

ROUTES = """
routes:
  /twice/{number}: {endpoint: Gallery, method: double, methods: [GET]}
  /plain: {endpoint: Gallery, method: double}
"""
TWICE = "route/twice/{number}"


async def test_routes_are_shown_and_deleted_by_their_paths(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(ROUTES, "utf-8")
    async with started_mesh("tests.e2e.handlers:Gallery", flags=["--http=0"]) as mesh:

        async def said(*arguments: str) -> Said:
            return await slotmesh(*arguments, "--address", mesh.controller_address)

        applied = await said("apply", str(file), "--yes")
        assert applied.status == 0, applied.err
        await eventually(lambda: is_answered(mesh, 200), what="the ingress has the routes")
        assert (await http(mesh.http_address, "GET", "/twice/21")).json == 42

        names = (await said("get", "-o", "name")).out.splitlines()
        assert names == ["backend/Gallery", "endpoint/Gallery", "route/plain", TWICE]
        one = await said("get", TWICE)
        assert yaml.safe_load(one.out)["routes"] == {
            "/twice/{number}": {"endpoint": "Gallery", "method": "double", "methods": ["GET"]}
        }

        dry = await said("delete", TWICE, "--dry-run", "-o", "json")
        assert json.loads(dry.out)["deleted"] == [TWICE]
        assert (await said("get", TWICE)).status == 0, "it is there still"
        misspelt = await said("delete", "route/twice/{numbr}")
        assert (misspelt.status != 0, TWICE in misspelt.err) == (True, True), misspelt

        deleted = await said("delete", TWICE, "--yes")
        assert deleted.status == 0, deleted.err
        await eventually(lambda: is_answered(mesh, 404), what="the ingress knows that it is gone")
        gone = await said("get", TWICE)
        assert gone.status != 0
        assert f"there is no {TWICE}" in gone.err
        assert (await http(mesh.http_address, "POST", "/plain", [1])).json == 2, "the other one stays"

        history = await said("history")
        assert TWICE in history.out
        back = await said("rollback", "--yes")
        assert back.status == 0, back.err
        await eventually(lambda: is_answered(mesh, 200), what="the route is back")


async def is_answered(mesh: MeshRun, status: int) -> bool:
    return (await http(mesh.http_address, "GET", "/twice/21")).status == status
