"""Two controllers on one state file, and a router that knows both, as processes of their own.

Invariants: as of `LoneController`, which has the one that leads at first; the other one stands by when the block
begins.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from slotmesh.cli.controller_view import ControllerStatus, Members
from slotmesh.cli.operator import Operator
from tests.support.lone_controller import GONE_S, START_S, LoneController


class TwoControllers(LoneController):
    """`controller` led first, `standby` waits for it."""

    standby: asyncio.subprocess.Process | None = None
    standby_address = ""

    @property
    def both(self) -> str:
        """The addresses of both, as members and commands take them."""
        return f"{self.address},{self.standby_address}"

    async def start_standby(self) -> None:
        """Starts the other controller; returns when it answers."""
        port = self.standby_address.rpartition(":")[2] or "0"
        flags = [f"--port={port}", f"--launch-dir={self.folder / 'launched'}", *self._flags]
        self.standby, self.standby_address = await self._spawn("controller_service", flags)

    async def start_router(self) -> None:
        flags = ["--port=0", f"--controller={self.both}", "--router-id=router-1"]
        self.router, self.router_address = await self._spawn("router_service", flags)

    async def members(self) -> Members:
        async with Operator.at(self.both) as operator:
            return await operator.members()

    async def standing(self) -> ControllerStatus:
        """Of the one that leads."""
        async with Operator.at(self.both) as operator:
            return await operator.standing()

    async def standing_once(self, leader: str, *standbys: str) -> ControllerStatus:
        """Of the one that leads, once that is the case."""
        deadline = asyncio.get_running_loop().time() + START_S
        while (now := await self.standing()).address != leader or tuple(now.role.standby_addresses) != standbys:
            assert asyncio.get_running_loop().time() < deadline, f"{now}\n{self.log_text()}"
            await asyncio.sleep(0.02)
        return now

    async def stop(self) -> None:
        """The one that stands by first: the leader takes its replicas down only where nobody stands by."""
        if self.standby is not None and self.standby.returncode is None:
            self.standby.send_signal(signal.SIGCONT)
            is_leader = self.controller is None or self.controller.returncode is not None
            if not is_leader:
                self.standby.terminate()
                async with asyncio.timeout(GONE_S):
                    await self.standby.wait()
                await self.standing_once(self.address)
            else:
                self.controller, self.standby = self.standby, None
        await super().stop()


@asynccontextmanager
async def two_controllers(folder: Path, spec: str, *flags: str) -> AsyncIterator[TwoControllers]:
    """A leader that launches what `spec` says, a standby, and a router; all processes end with the block."""
    (folder / "mesh.yaml").write_text(spec, "utf-8")
    mesh = TwoControllers(folder, [f"--spec={folder / 'mesh.yaml'}", f"--state={folder / 'mesh.state'}", *flags])
    try:
        await mesh.start()
        await mesh.start_standby()
        await mesh.start_router()
        yield mesh
    finally:
        await mesh.stop()
