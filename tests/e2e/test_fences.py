"""Replicas that fence themselves, as processes: their keys move, and none of them runs on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import slotmesh
from tests.e2e.fenced_handlers import VARIABLE
from tests.support.faults import FaultyMesh, Service, faulty_mesh
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.long]

FENCED = {"SLOTMESH_FENCE_AFTER": "6s", "SLOTMESH_FENCE_GRACE": "2s"}
MOVED_S = 90.0
"""A backstop: lease, fence and margin are 13 s together."""


class Journal:
    """What replicas have noted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, pid: int) -> list[str]:
        """The lines of one process, without its id."""
        lines = (line.partition(" ") for line in self._path.read_text("utf-8").splitlines())
        return [text for number, _, text in lines if number == str(pid)]


async def owner_and_other(mesh: FaultyMesh, endpoint: slotmesh.Endpoint, key: str) -> Sequence[Service]:
    """The replica that owns the key, and the other one."""
    pid = await endpoint.ordered(key).add(key, "first")
    return sorted(mesh.replicas, key=lambda it: it.pid != pid)


async def test_a_replica_that_stood_still_loses_its_keys_and_goes_on_with_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    async with (
        faulty_mesh(
            "tests.e2e.fenced_handlers:Journal",
            replicas=2,
            routers=1,
            proxied=True,
            env={**FENCED, VARIABLE: str(tmp_path / "journal")},
        ) as mesh,
        slotmesh.connect(mesh.addresses) as client,
    ):
        endpoint = client.endpoint("Journal")
        lane = endpoint.ordered("key")
        again = endpoint.options(idempotent=True, timeout=MOVED_S).ordered("key")
        owner, other = await owner_and_other(mesh, endpoint, "key")
        running = asyncio.ensure_future(lane.go_on("key"))
        await wait_until(lambda: "key step" in journal.of(owner.pid), timeout=60, what="a call runs")
        await mesh.stop_process(owner.pid)
        waiting = asyncio.ensure_future(again.add("key", "behind it"))
        steps = journal.of(owner.pid)

        with pytest.raises(slotmesh.SlotmeshError) as lost:
            async with asyncio.timeout(MOVED_S):
                await running
        assert lost.value.executed is slotmesh.Executed.UNKNOWN
        async with asyncio.timeout(MOVED_S):
            assert await waiting == other.pid, "its keys go on elsewhere, though nothing proves its end"
        assert await lane.add("key", "next") == other.pid

        mesh.continue_process(owner.pid)
        assert await owner.ended() == -signal.SIGALRM, "the kernel ends it as it goes on"
        assert journal.of(owner.pid) == steps, "it has not made another step of the call that ran, nor begun one"
        assert await lane.add("key", "last") == other.pid
        assert journal.of(other.pid) == ["key behind it", "key next", "key last"]


async def test_a_replica_without_a_controller_ends_also_where_its_handler_keeps_the_loop(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    async with (
        faulty_mesh(
            "tests.e2e.fenced_handlers:Journal",
            replicas=2,
            routers=1,
            proxied=True,
            env={**FENCED, VARIABLE: str(tmp_path / "journal")},
        ) as mesh,
        slotmesh.connect(mesh.addresses) as client,
    ):
        endpoint = client.endpoint("Journal")
        blocked, idle = await owner_and_other(mesh, endpoint, "key")
        await mesh.controller.kill()
        blocking = asyncio.ensure_future(endpoint.ordered("key").block("key"))
        await wait_until(lambda: "key blocks" in journal.of(blocked.pid), timeout=60, what="it blocks")
        assert await blocked.ended() == -signal.SIGALRM
        assert await idle.ended() == 0, "it drains, as nothing runs there"
        assert "fenced: no further call starts" in mesh.controller.log_text
        blocking.cancel()
        with suppress(asyncio.CancelledError, slotmesh.SlotmeshError):
            await blocking
