"""A mesh of any specification on this machine, every server a process whose memory and processor time can be read.

`slotmesh run` has one backend, and ends when a router does. Here routers come and go, and each has flags of its own.
Invariant: no process outlives the block, whichever way it is left; when this process is killed, they notice and end.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Literal
from urllib.request import urlopen

from slotmesh.cli.controller_view import FAILED_STATE, Members
from slotmesh.cli.operator import Operator
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.parent import AnnouncePipe, ParentPipe
from slotmesh.spec.model import Mesh

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0
"""More than draining replicas take in the worst case."""
_POLL_S: Final = 0.02
_SCRAPE_TIMEOUT_S: Final = 10.0


class MeshProcess:
    """One process of the mesh, whoever started it."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        """For people; of a router or a replica its id."""
        self.pid = pid

    def cpu_s(self) -> float:
        """Processor time that the process has used with all its threads, in user mode and in the kernel."""
        # What clock_getcpuclockid(3) gives for a process. /proc/PID/stat has the same, but counts in steps of 10 ms.
        return time.clock_gettime(~self.pid << 3 | 2)

    def rss_bytes(self) -> int:
        """Memory that it holds now."""
        for line in Path(f"/proc/{self.pid}/status").read_text("utf-8").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise CannotStart(f"the {self.name} has ended")


class ServerProcess(MeshProcess):
    """One process that serves, and that is stopped from here."""

    def __init__(self, name: str, process: Process, address: str) -> None:
        super().__init__(name, process.pid)
        self.address = address
        """`HOST:PORT`."""
        self._process = process

    async def stop(self) -> None:
        """Asks it to end, and waits; kills it where it does not."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        await end_of(self._process, STOP_TIMEOUT_S)


class ProcessMesh:
    """A controller that launches replicas, and the routers that were added."""

    def __init__(self, controller: ServerProcess, operator: Operator, parent: ParentPipe) -> None:
        self.controller = controller
        self.operator = operator
        self.routers: list[ServerProcess] = []
        self._parent = parent
        self._started = 0
        self._spec = Mesh()

    async def apply(self, spec: Mesh) -> None:
        """Makes the mesh exactly this, and waits until it is ready."""
        self._spec = spec
        await self.operator.apply(spec, prune=True)
        await self.wait_ready()

    async def add_router(self, *flags: str) -> ServerProcess:
        """Starts a router; `wait_ready` says when it is of use."""
        self._started += 1
        name = f"router-{self._started}"
        identity = (f"--router-id={name}", f"--controller={self.controller.address}")
        router = await start_server(
            name, "router_service", (*identity, *(flags or ("--metrics-port=0",))), self._parent
        )
        self.routers.append(router)
        return router

    async def remove_router(self, router: ServerProcess) -> None:
        """Stops a router in order."""
        self.routers.remove(router)
        await router.stop()

    async def replicas(self) -> list[MeshProcess]:
        """The replicas that take calls."""
        members = await self.operator.members()
        return [
            MeshProcess(each.replica_id, each.pid) for each in members.replicas if each.replica_id in members.ready()
        ]

    async def wait_ready(self) -> Members:
        """Returns when all replicas take calls, and all routers have the newest table and reach all replicas.

        Raises:
            CannotStart: a handler failed, or it took too long.
        """
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        while lack := self._lacks(members := await self.operator.members()):
            if asyncio.get_running_loop().time() > deadline:
                raise CannotStart(f"the mesh is not ready within {READY_TIMEOUT_S:g} s: {lack}")
            await asyncio.sleep(_POLL_S)
        return members

    async def wait_for_revision(self, revision: int) -> None:
        """Returns when every router has a table of this revision of the configuration, or a newer one, in force."""
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        while behind := (await self.operator.members()).behind(revision):
            if asyncio.get_running_loop().time() > deadline:
                raise CannotStart(f"revision {revision} is not in force at {[each.router_id for each in behind]}")
            await asyncio.sleep(_POLL_S / 10)

    async def scrape(self, router: ServerProcess) -> str:
        """What the router exports, in Prometheus' text format."""
        for status in (await self.operator.members()).routers:
            if status.router_id == router.name:
                return await asyncio.to_thread(scrape, status.metrics_address)
        raise CannotStart(f"the controller does not know {router.name}")

    def _lacks(self, members: Members) -> str:
        for replica in members.replicas:
            if replica.state == FAILED_STATE and any(
                replica.backend == backend.name for backend in self._spec.backends
            ):
                raise CannotStart(f"replica {replica.replica_id} failed: {replica.error}")
        for backend in self._spec.backends:
            wanted = backend.least_replicas
            ready = len(members.ready(backend.name))
            if ready < wanted:
                return f"{ready} of {wanted} replicas of {backend.name} are ready"
        ready_ids = members.ready()
        there = {
            each.router_id
            for each in members.routers
            if members.is_current(each) and ready_ids.issubset(each.linked_replica_ids)
        }
        missing = [router.name for router in self.routers if router.name not in there]
        return f"no table or no links at {', '.join(missing)}" if missing else ""


def scrape(metrics_address: str) -> str:
    """Blocks: for a thread."""
    with urlopen(f"http://{metrics_address}/metrics", timeout=_SCRAPE_TIMEOUT_S) as response:
        text: str = response.read().decode()
    return text


@asynccontextmanager
async def process_mesh(
    spec: Mesh,
    *,
    routers: int = 1,
    launcher: Literal["process", "external"] = "process",
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[ProcessMesh]:
    """A mesh that is ready. `env` adds to the environment of the controller and of the replicas.

    Raises:
        CannotStart: it did not get ready.
    """
    with ParentPipe() as parent:
        flags = (f"--launcher={launcher}", "--metrics-port=-1")
        controller = await start_server("controller", "controller_service", flags, parent, env)
        try:
            async with Operator.at(controller.address) as operator:
                mesh = ProcessMesh(controller, operator, parent)
                try:
                    for _ in range(routers):
                        await mesh.add_router()
                    await mesh.apply(spec)
                    yield mesh
                finally:
                    await asyncio.gather(*(router.stop() for router in mesh.routers))
        finally:
            await controller.stop()


async def end_of(process: Process, within_s: float) -> None:
    """Waits for the end of a process that was asked to stop, and kills it where that takes longer."""
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def start_server(
    name: str, module: str, flags: Sequence[str], parent: ParentPipe, env: Mapping[str, str] | None = None
) -> ServerProcess:
    """A process of `python -m module`, once it serves. Raises CannotStart."""
    with AnnouncePipe() as announced:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, "--port=0", "--log-level=warning", *flags),
            *(f"--parent-fd={parent.fd}", f"--announce-fd={announced.fd}"),
            stdin=DEVNULL,
            pass_fds=(*parent.pass_fds, *announced.pass_fds),
            env={**os.environ, **(env or {})},
            start_new_session=True,  # Ctrl-C in the terminal is for this process; they are ended in order
        )
        address = await announced.address()
    if address is None:
        raise CannotStart(f"the {name} ended before it served, with status {await process.wait()}")
    return ServerProcess(name, process, address)
