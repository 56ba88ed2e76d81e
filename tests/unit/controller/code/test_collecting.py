"""When a controller removes snapshots: not before its members have shown that its store is the newest."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from controller_service.shell.events import EventFeed
from controller_service.shell.launchers.protocol import Launcher
from controller_service.shell.leadership import NewerMembers
from controller_service.shell.loops import launching
from controller_service.shell.loops.launching import Launching
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.mesh_state import Key, MeshState, WorkQueue
from controller_service.store.protocol import MemoryStore
from slotmesh.runtime.clock import MonotonicClock
from tests.support.wait import wait_until
from tests.unit.controller.code.project import Project

pytestmark = pytest.mark.asyncio


class Collecting:
    """A controller whose store names no code, with a snapshot that is old enough to go."""

    def __init__(self, project: Project, lease_s: float) -> None:
        self.kept = project.keep().parent
        for thread in threading.enumerate():
            if thread.name == "sync-code":
                thread.join()  # it writes to the folder
        os.utime(self.kept, (1, 1))
        self.store = MemoryStore(generation="0" * 32)
        state = MeshState(MonotonicClock(), WorkQueue[Key](), EventFeed("f"))
        self.newer = NewerMembers(self.store, state)
        links = ReplicaLinks(state, self.store, self.newer, lease_s=lease_s)
        self.launching = Launching(state, links, Launcher(), str, project.snapshots)

    async def is_kept(self) -> bool:
        """After the loop had time for many collections."""
        task = asyncio.create_task(self.launching.collect_code(self.store))
        for _ in range(200):
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return is_there(self.kept)


def is_there(path: Path) -> bool:
    return path.exists()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "COLLECT_EVERY_S", 0.0)


async def test_what_the_store_does_not_name_goes_once_members_had_a_leases_time(project: Project) -> None:
    collecting = Collecting(project, lease_s=0.001)
    task = asyncio.create_task(collecting.launching.collect_code(collecting.store))
    await wait_until(lambda: not collecting.kept.exists(), what="it is removed")
    task.cancel()


async def test_nothing_goes_while_members_may_still_attach(project: Project) -> None:
    assert await Collecting(project, lease_s=60.0).is_kept()


async def test_nothing_goes_where_a_member_knows_a_newer_state(project: Project) -> None:
    collecting = Collecting(project, lease_s=0.001)
    collecting.newer.found("router/r", "holds a newer table")
    assert await collecting.is_kept()
