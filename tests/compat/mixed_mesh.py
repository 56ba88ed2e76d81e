"""A mesh whose processes are of two versions, and clients that load it.

Invariants: replicas are started here, as the controller would start its own version; each process keeps its id, its
port and, the controller, its state file, whatever version it is started of next.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from slotmesh.runtime.parent import ParentPipe
from slotmesh.spec.model import Backend
from tests.compat.load import ENDPOINT
from tests.history.checker import assert_holds, assert_results
from tests.history.log import HistoryLog, executions_file, read_history
from tests.history.model import Call, Fault
from tests.history.summary import summary
from tests.support.faults import FaultyMesh, Installation, Service, Surroundings
from tests.support.recorder import VARIABLE
from tests.support.wait import within

HANDLER: Final = f"tests.e2e.session_handlers:{ENDPOINT}"
ROUTERS: Final = 2
REPLICAS: Final = 2
LOADED_S: Final = 60.0
"""Clients that start on a busy machine."""
PATIENCE: Final = 4.0
"""How many times as long as on a machine that does nothing else something may take."""


class MixedMesh(FaultyMesh):
    """A mesh with one endpoint. Made by `mixed_mesh`."""

    def __init__(self, controller: Service, backend: Backend, folder: Path) -> None:
        super().__init__(controller, backend)
        self.folder = folder
        """Of its state and of the history."""
        self.ingresses: list[Service] = []

    async def start_of(self, service: Service, installation: Installation, log: HistoryLog) -> None:
        """Ends the process in order, and starts it again of this version; returns when all is linked."""
        at = time.monotonic()
        await service.stop()
        service.installation = installation
        await service.start()
        await self.wait_linked(REPLICAS)
        what = f"{service.name} started again"
        log.add(Fault(what=what, at=at, cleared_at=time.monotonic(), seen="it is linked"))

    async def stop(self) -> None:
        await asyncio.gather(*(ingress.stop() for ingress in self.ingresses))
        await super().stop()


@asynccontextmanager
async def services(folder: Path) -> AsyncIterator[Callable[..., Service]]:
    """Makes processes, of a name, a module and flags, which end with the block if nothing else has ended them."""
    with ExitStack() as stack:
        parent = stack.enter_context(ParentPipe())
        environment = {**os.environ, "TMPDIR": str(folder), VARIABLE: str(executions_file(folder))}
        surroundings = Surroundings(parent, environment, folder / "mesh.log")
        stack.callback(surroundings.close)
        yield lambda name, module, *flags, of: Service(name, module, flags, surroundings, of)


@asynccontextmanager
async def one_controller(folder: Path, installation: Installation, *more: str) -> AsyncIterator[Service]:
    """A controller alone, with the state file `mesh.state`. `more` are further flags."""
    async with services(folder) as service:
        flags = ("--launcher=external", f"--state={folder / 'mesh.state'}", *more)
        controller = service("controller", "controller_service", *flags, of=installation)
        try:
            await controller.start()
            yield controller
        finally:
            await controller.stop()


@asynccontextmanager
async def mixed_mesh(
    folder: Path, installation_of: Callable[[str], Installation], *, ingresses: int = 0
) -> AsyncIterator[MixedMesh]:
    """A mesh that is ready; `installation_of` a process by its name, as `router-1`."""
    async with AsyncExitStack() as stack:
        make = await stack.enter_async_context(services(folder))
        controller = await stack.enter_async_context(one_controller(folder, installation_of("controller")))

        def service(name: str, module: str, *flags: str) -> Service:
            flags = (f"--controller={controller.address}", *flags)
            return make(name, module, *flags, of=installation_of(name))

        mesh = MixedMesh(controller, Backend(name=ENDPOINT, handler=HANDLER, graceful_timeout_s=5.0), folder)
        stack.push_async_callback(mesh.stop)
        await mesh.apply()
        for name in (f"router-{number + 1}" for number in range(ROUTERS)):
            mesh.routers.append(service(name, "router_service", f"--router-id={name}"))
            await mesh.routers[-1].start()
        for name in (f"replica-{number + 1}" for number in range(REPLICAS)):
            identity = (f"--handler={HANDLER}", f"--backend={ENDPOINT}", f"--replica-id={name}")
            mesh.replicas.append(service(name, "replica_service", *identity))
            await mesh.replicas[-1].start()
        await mesh.wait_linked(REPLICAS)
        for name in (f"ingress-{number + 1}" for number in range(ingresses)):
            mesh.ingresses.append(service(name, "ingress_service", f"--routers={','.join(mesh.addresses)}"))
            await mesh.ingresses[-1].start()
        yield mesh


class Clients:
    """Clients of a mesh, in a process of their own. Made by `loading`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def wait_for_progress(self) -> None:
        """Waits until each of them has got more results, and no call is left that was made before.

        A call that has waited since before a replica ended may have run there, if its router is not there to ask.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        await self.wait_answered("more results of all clients")

    async def wait_answered(self, what: str) -> None:
        assert self._process.stdout is not None
        line = await within(self._process.stdout.readline(), what, timeout=LOADED_S)
        assert line == b"done\n", f"no {what}: the clients ended"


@asynccontextmanager
async def loading(mesh: MixedMesh, installation: Installation) -> AsyncIterator[tuple[Clients, HistoryLog]]:
    """Clients that call; leaving the block waits for all outcomes, and checks what was recorded."""
    process = await asyncio.create_subprocess_exec(
        *(installation.python, "-m", "tests.compat.load", str(mesh.folder), *mesh.addresses),
        cwd=installation.folder,
        stdin=PIPE,
        stdout=PIPE,
    )
    clients = Clients(process)
    try:
        await clients.wait_answered("load")
        with HistoryLog(mesh.folder) as log:
            yield clients, log
        assert process.stdin is not None
        process.stdin.close()
        assert await within(process.wait(), "the end of the clients", timeout=LOADED_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await within(process.wait(), "the end of the process")
    history = replace(read_history(mesh.folder), patience=PATIENCE)
    sys.stdout.write(f"\n{summary(history, f'in {mesh.folder}')}\n")
    assert_holds(history)
    assert sum(it.client == "direct" for it in history.calls) > 10
    assert_results(history, of=_moves)


def _moves(call: Call) -> bool:
    """Whether it continues at another router when its own one stops, as calls of a session do.

    Neither does an iteration (rule V6 of docs/protocol.md), nor a call in a slot, which is an rpc of its own.
    """
    return "/in a slot/" not in call.tag and "/iterated/" not in call.tag
