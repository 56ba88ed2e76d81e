"""Two controllers on one state file: the second one leads when the first one ends, and no caller notices."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import slotmesh
from controller_service.process_life import LEADS_NO_MORE
from slotmesh.cli.controller_view import ControllerStatus
from tests.support.shell import slotmesh as command
from tests.support.standing_by import stolen_lock
from tests.support.two_controllers import TwoControllers, two_controllers
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

SPEC = """
backends:
  v1: {handler: "tests.e2e.handlers:Whoami", num_replicas: 2, graceful_timeout: 5s}
  v2: {handler: "tests.e2e.handlers:Whoami", num_replicas: 1, graceful_timeout: 5s}
endpoints:
  e: {traffic: {v1: 1.0, v2: 0.0}}
"""


SILENT_S = 6.0
"""Longer than the leases of members."""


class Load:
    """Calls with and without ordering keys, all the time."""

    def __init__(self, client: slotmesh.Mesh) -> None:
        self._endpoint = client.endpoint("e")
        self._stop = asyncio.Event()
        self.answers: list[int] = []
        """Process ids."""

    async def run(self) -> None:
        """Raises what a call fails with."""
        while not self._stop.is_set():
            calls = [self._endpoint.pid() for _ in range(8)]
            calls += [self._endpoint.ordered(f"key-{number}").pid() for number in range(8)]
            self.answers += await asyncio.gather(*calls)
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()


@asynccontextmanager
async def loaded(mesh: TwoControllers) -> AsyncIterator[Load]:
    """Calls while the block runs; none of them fails."""
    async with slotmesh.connect(mesh.router_address) as client:
        load = Load(client)
        running = asyncio.ensure_future(load.run())
        await wait_until(lambda: running.done() or len(load.answers) > 100, timeout=60)
        yield load
        done = len(load.answers)
        await wait_until(lambda: running.done() or len(load.answers) > done + 100, timeout=60, what="calls to the end")
        load.stop()
        await running


async def led_by(mesh: TwoControllers, address: str) -> tuple[ControllerStatus, float]:
    """The leader, once it is the one at this address, and how long that took."""
    began = time.monotonic()
    return await mesh.standing_once(address), time.monotonic() - began


async def test_the_standby_leads_when_the_leader_is_killed(tmp_path: Path) -> None:
    async with two_controllers(tmp_path, SPEC) as mesh:
        before = await mesh.ready(3)
        first = await mesh.standing_once(mesh.address, mesh.standby_address)
        generation = (await mesh.members()).generation
        async with loaded(mesh) as load:
            to_standby = {"SLOTMESH_CONTROLLER": mesh.standby_address}
            to_both = {"SLOTMESH_CONTROLLER": f"{mesh.standby_address},{mesh.address}"}
            seen = await command("status", "--json", env=to_standby)
            assert json.loads(seen.out)["controller"] == mesh.address, "the standby has named it"
            assert (await command("traffic", "e", "v1=0", "v2=1", env=to_standby)).status == 0
            assert (await command("events", env=to_standby)).status == 0

            await mesh.kill()
            now, led_after_s = await led_by(mesh, mesh.standby_address)
            assert now.role.term == first.role.term + 1
            assert await mesh.ready(3) == before, "nothing was started again"
            shown = json.loads((await command("traffic", "e", "--json", env=to_both)).out)
            assert shown["traffic"] == {"v1": 0.0, "v2": 1.0}, "what was set before is in force"
            assert (await command("traffic", "e", "v1=1", "v2=0", env=to_both)).status == 0
            load.answers.clear()
            pids = {pid for replica_id, pid in before.items() if replica_id.startswith("v1")}
            await wait_until(lambda: pids & set(load.answers), timeout=60, what="the new traffic at the router")
        assert mesh.log_text().count("replica_launched") == 3
        assert (await mesh.members()).generation == generation

        # They are this controller's as if it had started them: one that dies is replaced.
        victim, pid = min(before.items())
        os.kill(pid, signal.SIGKILL)
        after = await mesh.ready(3, without=victim)
        assert len(after.keys() & before.keys()) == 2
        print(f"led {led_after_s:.2f} s after the kill")  # noqa: T201 - measured


@pytest.mark.long
async def test_leadership_goes_back_and_forth_and_members_follow(tmp_path: Path) -> None:
    async with two_controllers(tmp_path, SPEC) as mesh:
        before = await mesh.ready(3)
        await mesh.standing_once(mesh.address, mesh.standby_address)
        async with loaded(mesh):
            assert await mesh.end(signal.SIGTERM) == 0
            await led_by(mesh, mesh.standby_address)
            assert await mesh.ready(3) == before, "SIGTERM leaves them to the one that stands by"
            await mesh.start()
            await mesh.standing_once(mesh.standby_address, mesh.address)
            assert mesh.standby is not None
            mesh.standby.kill()
            await led_by(mesh, mesh.address)
            assert await mesh.ready(3) == before
        assert mesh.log_text().count("replica_launched") == 3


@pytest.mark.long
async def test_a_leader_that_is_stopped_still_leads_and_goes_on(tmp_path: Path) -> None:
    async with two_controllers(tmp_path, SPEC) as mesh:
        before = await mesh.ready(3)
        first = await mesh.standing_once(mesh.address, mesh.standby_address)
        assert mesh.controller is not None
        async with loaded(mesh) as load:
            mesh.controller.send_signal(signal.SIGSTOP)
            stopped_at = time.monotonic()
            await wait_until(lambda: time.monotonic() > stopped_at + SILENT_S, timeout=60, what="leases are over")
            load.answers.clear()
            await wait_until(lambda: len(load.answers) > 100, timeout=60, what="calls without a leader")
            shown = await command("status", "--json", env={"SLOTMESH_CONTROLLER": mesh.standby_address})
            assert shown.status == 1
            assert json.loads(shown.out) == {"controller": mesh.standby_address, "leads": False, "leader": mesh.address}
            mesh.controller.send_signal(signal.SIGCONT)
            assert await mesh.ready(3) == before
        assert await mesh.standing() == first


@pytest.mark.long
async def test_a_leader_that_has_lost_its_lock_ends_and_leaves_its_replicas(tmp_path: Path) -> None:
    async with two_controllers(tmp_path, SPEC) as mesh:
        before = await mesh.ready(3)
        first = await mesh.standing_once(mesh.address, mesh.standby_address)
        assert mesh.controller is not None
        async with loaded(mesh):
            with stolen_lock(tmp_path / "mesh.state"):
                async with asyncio.timeout(20):
                    assert await mesh.controller.wait() == LEADS_NO_MORE
            now, _ = await led_by(mesh, mesh.standby_address)
            assert now.role.term == first.role.term + 1
            assert await mesh.ready(3) == before
        assert mesh.log_text().count("replica_launched") == 3
        assert "this controller leads no more, and ends; replicas go on" in mesh.log_text()
