"""One process of another version among all others: no call of a session fails, is lost, out of order or executed twice.

Of routers and replicas there are two, so that sessions and keys move between versions, too.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.compat.mixed_mesh import Clients, MixedMesh, loading, mixed_mesh
from tests.compose.http_client import IDEMPOTENT, IDEMPOTENT_IN_0_2, call_by_http
from tests.history.log import HistoryLog
from tests.support.faults import THIS, Installation
from tests.support.shell import slotmesh as command
from tests.support.tiers import long

NEW: Final = "N"
OLD: Final = "N-1"
CLIENT: Final = "client"
CLI: Final = "cli"
INGRESS: Final = "ingress-1"


@pytest.mark.parametrize(
    ("version", "odd"),
    [
        *(long(NEW, it) for it in (CLIENT, "controller", "router-1", "replica-1", INGRESS, CLI)),
        *(long(OLD, it) for it in (CLIENT, "controller", "router-1", "replica-1", INGRESS, CLI)),
    ],
)
@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_one_of_another_version_works_with_all_others(
    version: str, odd: str, previous: Installation, tmp_path: Path
) -> None:
    one, others = (THIS, previous) if version == NEW else (previous, THIS)

    def installation_of(name: str) -> Installation:
        return one if name == odd else others

    async with mixed_mesh(tmp_path, installation_of, ingresses=int(odd == INGRESS)) as mesh:
        async with loading(mesh, installation_of(CLIENT)) as (clients, log):
            if odd == CLI:
                await _command(mesh, one)
            elif odd == INGRESS:
                await _call_by_http(mesh, clients, log)
            else:
                await _restart(mesh, odd, clients, log)


async def _restart(mesh: MixedMesh, odd: str, clients: Clients, log: HistoryLog) -> None:
    """Processes meet again: the odd one all others; where none of the mesh is odd, those that clients are linked to."""
    members = [mesh.controller, *mesh.routers, *mesh.replicas]
    for service in [it for it in members if it.name == odd] or [mesh.routers[0], mesh.replicas[0]]:
        await mesh.start_of(service, service.installation, log)
        await clients.wait_for_progress()


async def _call_by_http(mesh: MixedMesh, clients: Clients, log: HistoryLog) -> None:
    stop = asyncio.Event()
    (ingress,) = mesh.ingresses
    mark = IDEMPOTENT if ingress.installation is THIS else IDEMPOTENT_IN_0_2
    calling = asyncio.ensure_future(call_by_http(ingress.address, log, stop, mark=mark))
    await _restart(mesh, INGRESS, clients, log)
    stop.set()
    load = await calling
    assert load.answered, load.failed
    assert not load.failed


async def _command(mesh: MixedMesh, cli: Installation) -> None:
    """Commands read what there is, and change it."""
    at = f"--controller={mesh.controller.address}"

    async def run(*arguments: str) -> str:
        said = await command(*arguments, python=cli.python, cwd=cli.folder)
        assert said.status == 0, said
        return said.out

    spec = mesh.folder / "mesh.yaml"
    spec.write_text(await run("get", at), "utf-8")
    assert "Ledger" in spec.read_text("utf-8")
    for replica in ("replica-1", "replica-2"):
        assert replica in await run("status", at)
    assert "router-2" in await run("status", "--output=json", at)
    assert "Ledger" in await run("describe", "Ledger", at)
    spec.write_text(spec.read_text("utf-8").replace("graceful_timeout: 5s", "graceful_timeout: 6s"), "utf-8")
    assert "would be updated  backend/Ledger" in await run("apply", str(spec), "--dry-run", at)
    await run("apply", str(spec), "--yes", at)
    assert "6s" in await run("get", at)
    await run("rollback", "--yes", at)
    assert "5s" in await run("get", at)
    assert "Ledger" in await run("history", at)
    assert await run("events", at)
    assert "Ledger" in await run("traffic", "Ledger", at)
    await run("calls", f"--router={mesh.addresses[0]}")
    assert "announced addresses" in await run("check", at)
