"""A state file that version N-1 has written is read by N as a whole, and so is its export; and the other way round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.compat.mixed_mesh import one_controller
from tests.support.faults import THIS, Installation
from tests.support.shell import slotmesh as command
from tests.support.tiers import long

MESH: Final = """
backends:
  v1:
    handler: "tests.e2e.session_handlers:Ledger"
    num_replicas: 2
    user_config: {version: 1, nested: {list: [1, 2.5, null, "x"]}}
    balancer: round_robin
    graceful_timeout: 7s
  v2:
    handler: "tests.e2e.session_handlers:Ledger"
    max_queued_calls: 100
endpoints:
  carts: {traffic: {v1: 0.75, v2: 0.25}, shadows: {v2: 0.5}}
  orders: {traffic: {v1: 1.0}}
routes:
  /carts/{user}: {endpoint: carts, method: append, methods: [GET, PUT]}
"""


@pytest.mark.asyncio
async def test_a_newer_controller_reads_all_that_an_older_one_has_written(
    previous: Installation, tmp_path: Path
) -> None:
    (tmp_path / "mesh.yaml").write_text(MESH, "utf-8")
    async with one_controller(tmp_path, previous) as controller:
        for arguments in (
            ("apply", str(tmp_path / "mesh.yaml"), "--yes"),
            ("traffic", "orders", "v2=1", "--force"),
            ("rollback", "--yes"),
        ):
            said = await command(
                *arguments, f"--controller={controller.address}", python=previous.python, cwd=previous.folder
            )
            assert said.status == 0, said
        written = await _export(tmp_path, previous)
        await controller.stop()
        before = (tmp_path / "mesh.state").read_bytes()
        assert _lacking(written, await _export(tmp_path, THIS)) == []
        assert (tmp_path / "mesh.state").read_bytes() == before, "an export changes nothing"

        controller.installation = THIS
        await controller.start()
        continued = await _export(tmp_path, THIS)
        assert continued["generation"] == written["generation"]
        for part in ("backends", "endpoints", "routes", "history", "answers", "applied"):
            assert _lacking(written[part], continued[part]) == [], part

    (tmp_path / "mesh.json").write_text(json.dumps(written), "utf-8")
    imported = await command("state", "import", str(tmp_path / "mesh.json"), str(tmp_path / "new.state"))
    assert imported.status == 0, imported


@pytest.mark.asyncio
@pytest.mark.parametrize("has_spec", [long(False), True])
async def test_an_older_controller_reads_what_a_newer_one_has_written_where_nothing_new_is_used(
    previous: Installation, tmp_path: Path, has_spec: bool
) -> None:
    (tmp_path / "mesh.yaml").write_text(MESH, "utf-8")
    (tmp_path / "team.yaml").write_text(MESH.replace("7s", "8s"), "utf-8")
    flags = (f"--spec={tmp_path / 'mesh.yaml'}",) if has_spec else ()
    async with one_controller(tmp_path, THIS, *flags) as controller:
        for arguments in (
            ("apply", str(tmp_path / "team.yaml"), "--yes"),
            ("traffic", "orders", "v2=1", "--force"),
            ("rollback", "--yes"),
        ):
            said = await command(*arguments, f"--controller={controller.address}")
            assert said.status == 0, said
        written = await _export(tmp_path, THIS)
        assert ("backend/v1#spec" in written["applied"]) is has_spec
        await controller.stop()
        assert _lacking(written, await _export(tmp_path, previous)) == []

        (tmp_path / "mesh.yaml").write_text((tmp_path / "team.yaml").read_text("utf-8"), "utf-8")
        controller.installation = previous
        await controller.start()
        continued = await _export(tmp_path, previous)
        assert continued["generation"] == written["generation"]
        for part in ("backends", "endpoints", "routes", "history", "answers", "applied"):
            assert _lacking(written[part], continued[part]) == [], part

    (tmp_path / "mesh.json").write_text(json.dumps(written), "utf-8")
    imported = await command(
        *("state", "import", str(tmp_path / "mesh.json"), str(tmp_path / "new.state")),
        python=previous.python,
        cwd=previous.folder,
    )
    assert imported.status == 0, imported


async def _export(folder: Path, installation: Installation) -> dict[str, Any]:
    said = await command(
        "state", "export", str(folder / "mesh.state"), python=installation.python, cwd=installation.folder
    )
    assert said.status == 0, said
    document: dict[str, Any] = json.loads(said.out)
    return document


def _lacking(old: Any, new: Any, at: str = "") -> list[str]:
    """Paths of what the new document lacks, or has otherwise. It may have more."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [path for key in old for path in _lacking(old[key], new.get(key), f"{at}/{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [path for number, each in enumerate(old) for path in _lacking(each, new[number], f"{at}/{number}")]
    return [] if old == new else [f"{at}: {old!r} is {new!r}"]
