"""`slotmesh apply` of a handler that does not exist, and `slotmesh top` of one view."""

from __future__ import annotations

import json

import pytest

from tests.support.mesh import ROOT, started_mesh
from tests.support.shell import slotmesh

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120), pytest.mark.long]

MESH = 'backends: {{m: {{handler: "{handler}", num_replicas: 1}}}}\n'


async def test_a_handler_whose_module_is_misspelt_is_refused_before_anything_changes() -> None:
    async with started_mesh("tests.e2e.handlers:Gallery") as mesh:
        at = {"SLOTMESH_ADDRESS": mesh.controller_address}
        for flags in ((), ("--dry-run",)):
            applied = MESH.format(handler="tests.e2e.handlrs:Gallery")
            said = await slotmesh("apply", "-", "--yes", *flags, stdin=applied, env=at)
            assert said.status == 1, said
            expected = f"module 'tests.e2e.handlrs' is not in {ROOT}; did you mean tests.e2e.handlers?"
            assert "backends.m.handler" in said.err
            assert expected in said.err
        listed = json.loads((await slotmesh("top", "--once", "--view", "backends", "--output", "json", env=at)).out)
        assert "m" not in [it["name"] for it in listed["backends"]]
        assert "replicas" not in listed
        table = (await slotmesh("top", "--once", "--view", "replicas", env=at)).out
        assert "Replicas" in table
        assert "Endpoints" not in table
