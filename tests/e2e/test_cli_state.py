"""`slotmesh history`, `rollback` and `state` as people use them, and a controller that is started with the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.controllers import running_controller
from tests.support.shell import slotmesh

MESH = """
backends:
  v1: {handler: "app:Digits", num_replicas: 2}
  v2: {handler: "app:Digits"}
endpoints:
  digits: {traffic: {v1: 1.0}}
"""

pytestmark = pytest.mark.asyncio


async def test_changes_are_shown_and_undone(tmp_path: Path) -> None:
    async with running_controller() as mesh:
        env = {"SLOTMESH_ADDRESS": mesh.controller.address}
        nothing = await slotmesh("history", env=env)
        assert (nothing.status, nothing.out) == (0, "nothing was changed yet\n")
        applied = await mesh.apply(MESH)
        changed = await slotmesh("traffic", "digits", "v1=0.5", "v2=0.5", "--no-wait", "--force", env=env)
        assert changed.status == 0, changed.err
        shown = await slotmesh("history", env=env)
        lines = [line for line in shown.out.splitlines() if "digits" in line]
        assert "updated endpoint/digits: traffic" in lines[0]
        assert "slotmesh at 127.0.0.1:" in lines[0]
        document = json.loads((await slotmesh("history", "--json", "--most", "1", env=env)).out)
        (newest,) = document["revisions"]
        assert newest["base_revision"] == applied.revision
        (change,) = newest["changes"]
        assert (change["resource"], change["change"], change["fields"]) == ("endpoint/digits", "updated", ["traffic"])

        planned = await slotmesh("rollback", "--dry-run", env=env)
        assert planned.out.splitlines()[0] == "would be updated  endpoint/digits"
        assert f"would be that of revision {applied.revision} again" in planned.err
        assert mesh.controller.store.read().configured_at == newest["revision"]
        done = await slotmesh("rollback", str(applied.revision), env=env)
        assert (done.status, done.out.splitlines()[0]) == (0, "updated   endpoint/digits")
        traffic = mesh.controller.store.read().endpoints["digits"].traffic
        assert traffic is not None
        assert traffic.weights == {"v1": 1.0}
        wrong = await slotmesh("rollback", "4711", env=env)
        assert (wrong.status, wrong.out) == (1, "")
        assert "BAD_REQUEST: revision: 4711 is no revision of the configuration that is kept" in wrong.err


@pytest.mark.long
async def test_a_state_is_carried_to_another_file_while_its_controller_runs(tmp_path: Path) -> None:
    state, copy = tmp_path / "mesh.state", tmp_path / "copy.state"
    async with running_controller(state=state) as mesh:
        await mesh.apply(MESH)
        printed = await slotmesh("state", "export", str(state))
        assert (printed.status, printed.err) == (0, "")
        document = json.loads(printed.out)
        assert document["generation"] == mesh.controller.store.generation
        assert document["endpoints"]["digits"]["traffic"]["weights"] == {"v1": 1.0}
        in_use = await slotmesh("state", "import", "-", str(state), stdin=printed.out)
        assert in_use.status == 1
        assert f"in use by the controller at {mesh.controller.address}" in in_use.err
    brought = await slotmesh("state", "import", "-", str(copy), stdin=printed.out)
    assert (brought.status, brought.out) == (0, "")
    assert "2 backends, 1 endpoints, 1 revisions" in brought.err
    again = json.loads((await slotmesh("state", "export", str(copy))).out)
    for part in ("backends", "endpoints", "history"):
        assert again[part] == document[part]
    assert again["generation"] != document["generation"]
    assert again["epoch_floor"] >= document["epoch_floor"]
    async with running_controller(state=copy) as mesh:
        assert set(mesh.controller.store.read().backends) == {"v1", "v2"}
    twice = await slotmesh("state", "import", "-", str(copy), stdin=printed.out)
    assert (twice.status, "is there already" in twice.err) == (1, True)


@pytest.mark.long
async def test_what_cannot_be_carried_is_told(tmp_path: Path) -> None:
    missing = await slotmesh("state", "export", str(tmp_path / "nothing"))
    assert (missing.status, missing.out) == (1, "")
    assert "there is no such file" in missing.err
    for text, expected in (
        ("{}", "is no export of a state"),
        ('{"format": "slotmesh-state", "version": 2}', "this version of slotmesh reads 1"),
        ("nonsense", "is no JSON"),
    ):
        said = await slotmesh("state", "import", "-", str(tmp_path / "new"), stdin=text)
        assert (said.status, expected in said.err) == (1, True), said.err
    assert not (tmp_path / "new").exists()
