"""Members that are ended by a signal leave their reason: real processes, and the commands that show it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.support.lone_controller import LoneController, lone_controller
from tests.support.shell import slotmesh as command

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

SPEC = """
backends:
  Whoami: {handler: "tests.e2e.handlers:Whoami", num_replicas: 1}
endpoints:
  Whoami: {traffic: {Whoami: 1.0}}
"""
WITHIN_S = 30.0


async def shown(mesh: LoneController, *arguments: str, words: str) -> str:
    """What the command prints, once it has these words."""
    deadline = asyncio.get_running_loop().time() + WITHIN_S
    while words not in (out := (await command(*arguments, env={"SLOTMESH_CONTROLLER": mesh.address})).out):
        assert asyncio.get_running_loop().time() < deadline, f"no {words!r} in\n{out}\n{mesh.log_text()}"
    return out


async def test_a_replica_and_a_router_that_were_ended_by_a_signal_leave_their_reason(tmp_path: Path) -> None:
    async with lone_controller(tmp_path, SPEC) as mesh:
        ((replica_id, pid),) = (await mesh.ready(1)).items()
        os.kill(pid, signal.SIGTERM)
        exited = "exited with status 0; its own reason: SIGTERM"
        await shown(mesh, "events", f"replica/{replica_id}", "--kind", "replica-exited", words=exited)
        router = mesh.router
        assert router is not None
        router.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WITHIN_S):
            assert await router.wait() == 0
        left = "said goodbye; its own reason: SIGTERM"
        await shown(mesh, "events", "router/router-1", words=left)
