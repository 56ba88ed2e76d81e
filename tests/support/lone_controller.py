"""A controller with a router, as processes of their own, that tests kill and start again at the same address.

Invariants: replicas find the controller again, so its port is fixed from its first start on; all processes carry a mark
in their environment, by which they are found whoever adopted them; leaving the block ends everything, and fails the
test if anything is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from slotmesh.cli.controller_view import Members
from slotmesh.cli.operator import Operator
from slotmesh.runtime.parent import AnnouncePipe
from tests.support.mesh import MARK, ROOT, marked
from tests.support.wait import wait_until

START_S: Final = 60.0
GONE_S: Final = 30.0


class LoneController:
    """A controller that may be dead, its router, and the replicas that it has started."""

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self.folder = folder
        self.address = ""
        self.router_address = ""
        self.controller: asyncio.subprocess.Process | None = None
        self.router: asyncio.subprocess.Process | None = None
        self._flags = flags
        self._mark = uuid4().hex

    async def start(self) -> None:
        """Starts the controller, at the address that it had."""
        port = self.address.rpartition(":")[2] or "0"
        flags = [f"--port={port}", f"--launch-dir={self.folder / 'launched'}", *self._flags]
        self.controller, self.address = await self._spawn("controller_service", flags)

    def use_flags(self, *flags: str) -> None:
        """Of later starts of the controller: these override those that it was started with."""
        self._flags = [*self._flags, *flags]

    async def start_router(self) -> None:
        flags = ["--port=0", f"--controller={self.address}", "--router-id=router-1"]
        self.router, self.router_address = await self._spawn("router_service", flags)

    async def kill(self) -> None:
        """Ends the controller where it stands."""
        await self.end(signal.SIGKILL)

    async def end(self, number: signal.Signals) -> int:
        """Sends the controller a signal, and waits for its end."""
        assert self.controller is not None
        self.controller.send_signal(number)
        async with asyncio.timeout(GONE_S):
            return await self.controller.wait()

    async def members(self) -> Members:
        async with Operator.at(self.address) as operator:
            return await operator.members()

    async def ready(self, count: int, *, without: str = "", timeout: float = START_S) -> dict[str, int]:
        """Process ids of the ready replicas, by id, once there are that many, none of them `without`.

        The router is attached, and has a link to each.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            members = await self.members()
            ready = members.ready()
            # While no router is attached, none has a table: a controller that dies now leaves one without any.
            is_linked = bool(members.routers) and all(ready.issubset(it.linked_replica_ids) for it in members.routers)
            if len(ready) == count and without not in ready and is_linked:
                return {it.replica_id: it.pid for it in members.replicas if it.replica_id in ready}
            assert asyncio.get_running_loop().time() < deadline, f"within {timeout} s: {members}\n{self.log_text()}"
            await asyncio.sleep(0.05)

    def replica_processes(self) -> set[int]:
        """Ids of the processes of replicas that live."""
        return {pid for pid, line in marked(self._mark).items() if "replica_service" in line.split()}

    def log_text(self) -> str:
        return (self.folder / "log").read_text("utf-8", errors="replace")

    async def stop(self) -> None:
        """Ends everything. What is left of replicas then is killed, and fails the test."""
        for process in (self.router, self.controller):
            if process is not None and process.returncode is None:
                process.terminate()
                async with asyncio.timeout(GONE_S):
                    await process.wait()
        try:
            await wait_until(lambda: not marked(self._mark), timeout=GONE_S, what="the end of all")
        finally:
            for pid in marked(self._mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def _spawn(self, module: str, flags: Sequence[str]) -> tuple[asyncio.subprocess.Process, str]:
        with AnnouncePipe() as pipe, (self.folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, "--metrics-port=-1", f"--announce-fd={pipe.fd}", *flags),
                cwd=ROOT,
                env={**os.environ, MARK: self._mark},
                stdout=log,
                stderr=log,
                pass_fds=pipe.pass_fds,
                process_group=0,
            )
            try:
                async with asyncio.timeout(START_S):
                    address = await pipe.address()
            except BaseException:
                process.kill()
                await process.wait()
                raise
        assert address is not None, self.log_text()
        return process, address


@asynccontextmanager
async def lone_controller(folder: Path, spec: str, *flags: str) -> AsyncIterator[LoneController]:
    """A controller that launches what `spec` says, and a router; all processes end with the block."""
    (folder / "mesh.yaml").write_text(spec, "utf-8")
    lone = LoneController(folder, [f"--spec={folder / 'mesh.yaml'}", *flags])
    try:
        await lone.start()
        await lone.start_router()
        yield lone
    finally:
        await lone.stop()
