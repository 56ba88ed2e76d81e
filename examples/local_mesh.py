"""A whole mesh on this machine for as long as a block lasts: `slotmesh run`, started from a program.

Invariant: no process outlives the block, whichever way it is left; when this process is killed, the mesh notices and
ends. This module is also what runs in the child: the command line, with an eye on the parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from slotmesh.cli import main as command_line
from slotmesh.cli.operator import Operator
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.parent import ParentPipe
from slotmesh.runtime.signals import stop_signals
from slotmesh.spec.model import Mesh

_READY_S = 60.0
_STOP_TIMEOUT_S = 60.0
"""More than `slotmesh run` takes in the worst case."""


@dataclass(frozen=True, slots=True)
class ExampleMesh:
    """A mesh that is up."""

    name: str
    """Of its endpoint."""
    routers: tuple[str, ...]
    """`HOST:PORT` of each."""
    controller: str
    """`HOST:PORT`."""
    _process: Process

    @property
    def router(self) -> str:
        """The first router."""
        return self.routers[0]

    async def wait_for_end(self) -> None:
        """Returns when the mesh has ended although the block has not: it said why on stderr."""
        await self._process.wait()


@asynccontextmanager
async def local_mesh(
    handler: str,
    *,
    replicas: int = 1,
    routers: int = 1,
    router_port: int = 0,
    controller_port: int = 0,
    is_quiet: bool = False,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[ExampleMesh]:
    """Runs a handler, `MODULE:NAME`. Ports: of the first router and of the controller; 0 is any free one.

    `is_quiet`: nothing is said of progress, nor of how to call a mesh that is soon gone. `env` adds to the environment
    of all of its processes.

    Raises:
        CannotStart: the mesh did not get ready; it said why on stderr.
    """
    with ParentPipe() as parent:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.local_mesh", str(parent.fd)),
            *("run", handler, f"--replicas={replicas}", f"--routers={routers}"),
            *(f"--router-port={router_port}", f"--controller-port={controller_port}"),
            *(["--quiet"] if is_quiet else []),
            stdout=PIPE,
            env={**os.environ, **(env or {})},
            pass_fds=parent.pass_fds,
            # Ctrl-C in the terminal is this process's; the mesh is ended in order.
            start_new_session=True,
        )
        try:
            yield await _ready(handler, process)
        finally:
            await _stop(process)


async def apply(controller: str, mesh: Mesh) -> None:
    """Adds the backends and endpoints, and waits until all of their replicas are ready."""
    wanted = sum(backend.num_replicas or 1 for backend in mesh.backends)
    async with Operator.at(controller) as operator, asyncio.timeout(_READY_S):
        await operator.apply(mesh)
        while len((await operator.members()).ready()) < wanted:  # noqa: ASYNC110 - the controller announces no readiness to clients
            await asyncio.sleep(0.1)


async def until_stopped(session: Coroutine[Any, Any, int]) -> int:
    """Runs the session. Returns its exit status, or 130 if a signal ended it."""
    with stop_signals() as stop:
        running = asyncio.ensure_future(session)
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        running.cancel()  # nothing, where it has ended
        try:
            return await running
        except asyncio.CancelledError:
            return 130


async def _ready(handler: str, process: Process) -> ExampleMesh:
    """Reads `ready router=HOST:PORT[,HOST:PORT…] controller=HOST:PORT`, the only line of stdout."""
    if process.stdout is None:
        raise AssertionError("asked for a pipe")
    word, *facts = (await process.stdout.readline()).decode().split() or [""]
    if word != "ready":
        raise CannotStart(f"the mesh did not get ready: `slotmesh run` ended with status {await process.wait()}")
    address = dict(fact.split("=", 1) for fact in facts)
    name = handler.rpartition(":")[2]
    return ExampleMesh(name, tuple(address["router"].split(",")), address["controller"], process)


async def _stop(process: Process) -> None:
    """Ends the mesh in order, also for somebody who does not want to wait for it."""
    stopping = asyncio.ensure_future(_end(process))
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await stopping
        raise


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _end_with_parent(parent_fd: int) -> None:
    os.read(parent_fd, 1)  # nothing is ever written: it returns when the parent is gone
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, args=(int(sys.argv.pop(1)),), daemon=True).start()
    command_line()
