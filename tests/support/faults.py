"""A mesh that can be broken: its processes are killed, stopped and started again, its connections stalled and cut.

    async with faulty_mesh("tests.e2e.session_handlers:Ledger", routers=2, replicas=3, proxied=True) as mesh:
        await mesh.routers[0].kill()
        await mesh.routers[0].start()
        mesh.router_proxies[0].stall()

Invariants: a router keeps its id and its port; a replica that is started here keeps its id and its proxy. With proxies,
all that clients, routers and replicas send goes through one: addresses of routers and replicas are advertised as their
proxies', and each of them has a proxy of its own to the controller.
Without, the controller launches the replicas and replaces those that die, as under `slotmesh run`. Leaving the block
ends every process, stopped ones too; they end by themselves when the test process is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slotmesh.cli.console import CommandFailed
from slotmesh.cli.controller_view import Members
from slotmesh.cli.operator import Operator
from slotmesh.runtime.parent import AnnouncePipe, ParentPipe
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from slotmesh.units import parse_host_port
from slotmesh.v1 import mesh_pb2
from tests.support.mesh import ROOT
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.wait import wait_until, within

START_TIMEOUT_S: Final = 90.0
REPLACE_TIMEOUT_S: Final = 45.0
"""Replicas that are killed soon after their start are replaced later and later: after 30 s at most."""
STOP_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.02
"""How soon a change of the members is seen."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A slotmesh that processes are started of."""

    python: str
    """Its interpreter."""
    folder: Path
    """Where processes work: what they import from there is not installed."""


THIS: Final = Installation(sys.executable, ROOT)
"""The slotmesh of this repository."""


class Service:
    """A process of a mesh, which may be started more than once."""

    def __init__(
        self, name: str, module: str, flags: Sequence[str], mesh: Surroundings, installation: Installation = THIS
    ) -> None:
        self.name = name
        """For people, as `router-1`."""
        self.address = ""
        """Where it serves; the same at each start."""
        self.installation = installation
        """What the next start is of."""
        self._module = module
        self._flags = flags
        self._mesh = mesh
        self._process: asyncio.subprocess.Process | None = None

    def twin(self) -> Service:
        """A second process with the same flags, on a port of its own. Whoever starts it stops it."""
        return Service(f"{self.name}-twin", self._module, self._flags, self._mesh, self.installation)

    @property
    def log_text(self) -> str:
        """What all processes of the mesh have said, its end."""
        return self._mesh.log_text()

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    async def start(self) -> None:
        """Starts it, and waits until it serves."""
        port = parse_host_port(self.address)[1] if self.address else 0
        with AnnouncePipe() as pipe:
            self._process = await asyncio.create_subprocess_exec(
                self.installation.python,
                "-m",
                self._module,
                *self._flags,
                "--host=127.0.0.1",
                f"--port={port}",
                "--metrics-port=-1",
                "--log-level=warning",
                f"--parent-fd={self._mesh.parent.fd}",
                f"--announce-fd={pipe.fd}",
                cwd=self.installation.folder,
                env=self._mesh.environment,
                stdin=DEVNULL,
                stdout=self._mesh.log_fd,
                stderr=self._mesh.log_fd,
                pass_fds=(*self._mesh.parent.pass_fds, *pipe.pass_fds),
                process_group=0,
            )
            async with asyncio.timeout(START_TIMEOUT_S):
                address = await pipe.address()
        assert address, f"{self.name} did not start:\n{self._mesh.log_text()}"
        self.address = address

    async def kill(self) -> float:
        """SIGKILL; returns the moment before it, when it is dead."""
        at = time.monotonic()
        assert self._process is not None
        self._process.kill()
        assert await within(self._process.wait(), "the end of the process", timeout=60.0) == -signal.SIGKILL
        return at

    async def ended(self, timeout: float = 60.0) -> int:
        """The exit status, once it has ended by itself."""
        assert self._process is not None
        async with asyncio.timeout(timeout):
            return await self._process.wait()

    async def stop(self) -> None:
        """Asks it to end, even if it is stopped; kills it when it does not."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        for number in (signal.SIGCONT, signal.SIGTERM):
            with suppress(ProcessLookupError):
                process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await within(process.wait(), "the end of the process", timeout=60.0)
            raise AssertionError(f"{self.name} did not end:\n{self._mesh.log_text()}") from None


class Surroundings:
    """What all processes of a mesh share."""

    def __init__(self, parent: ParentPipe, environment: Mapping[str, str], log: Path) -> None:
        self.parent = parent
        self.environment = environment
        self._log = log
        self.log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log_text(self) -> str:
        """What all processes have said, its end."""
        return self._log.read_text("utf-8", errors="replace")[-20_000:]

    def close(self) -> None:
        os.close(self.log_fd)


class FaultyMesh:
    """A mesh with one endpoint. Made by `faulty_mesh`."""

    def __init__(self, controller: Service, backend: Backend) -> None:
        self.controller = controller
        self.backend = backend
        """As it was applied."""
        self.routers: list[Service] = []
        self.replicas: list[Service] = []
        """Those that were started here; none where the controller launches them."""
        self.router_proxies: list[TcpProxy] = []
        """Between clients and each router; none unless `proxied`."""
        self.replica_proxies: list[TcpProxy] = []
        """Between routers and each replica; none unless `proxied`."""
        self.controller_proxies: dict[str, TcpProxy] = {}
        """Between each router or replica and the controller, by name; none unless `proxied`."""
        self._stopped: set[int] = set()

    @property
    def addresses(self) -> list[str]:
        """Where clients reach the routers."""
        return [proxy.address for proxy in self.router_proxies] or [router.address for router in self.routers]

    def proxies_of(self, service: Service) -> list[tuple[str, TcpProxy]]:
        """The proxies on the way to a service, and its own one to the controller, with names for people."""
        found: list[tuple[str, TcpProxy]] = []
        for services, proxies in ((self.routers, self.router_proxies), (self.replicas, self.replica_proxies)):
            if service in services and proxies:
                found.append((service.name, proxies[services.index(service)]))
        if service.name in self.controller_proxies:
            found.append((f"{service.name} from the controller", self.controller_proxies[service.name]))
        return found

    async def apply(self) -> None:
        """Tells the controller what should run."""
        name = self.backend.name
        endpoint = Endpoint(name=name, traffic=TrafficPolicy(weights={name: 1.0}))
        async with Operator.at(self.controller.address) as operator:
            await operator.apply(Mesh(backends=(self.backend,), endpoints=(endpoint,)))

    async def start_again(self, service: Service) -> None:
        """Starts what has ended. A controller has forgotten everything, and is told again what should run."""
        await service.start()
        if service is self.controller:
            await self.apply()
        if service in self.replicas and self.replica_proxies:
            self.replica_proxies[self.replicas.index(service)].target = service.address

    async def members(self) -> Members:
        """What the controller says now."""
        async with Operator.at(self.controller.address) as operator:
            return await operator.members()

    async def replica_pids(self) -> dict[str, int]:
        """Process ids of the replicas that take calls, by replica id."""
        members = await self.members()
        return {it.replica_id: it.pid for it in members.replicas if it.replica_id in members.ready()}

    async def wait_linked(
        self, replicas: int, timeout: float = REPLACE_TIMEOUT_S, *, without: Collection[str] = ()
    ) -> None:
        """Waits until so many replicas are ready, and linked to all routers that the controller knows of.

        `without`: none of these replicas is there any more, unless as one that has stopped.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                async with Operator.at(self.controller.address) as operator:
                    await self._watch_links(operator, replicas, deadline, without)
                    return
            except CommandFailed:  # the controller, too, may have been stopped until now
                assert time.monotonic() < deadline, f"no controller answers within {timeout} s"

    async def _watch_links(self, operator: Operator, replicas: int, deadline: float, without: Collection[str]) -> None:
        while True:
            members = await operator.members()
            ready = members.ready()
            linked = all(ready.issubset(router.linked_replica_ids) for router in members.routers)
            running = {it.replica_id for it in members.replicas if it.state != mesh_pb2.REPLICA_STATE_STOPPED}
            left = running.isdisjoint(without)
            if len(ready) == replicas and linked and left and len(members.routers) == len(self.routers):
                return
            assert time.monotonic() < deadline, f"not in time: {members}"
            await asyncio.sleep(POLL_S)

    async def kill_process(self, pid: int) -> float:
        """SIGKILL of a process that somebody else started; returns the moment before it, when it is dead."""
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: _state(pid) in {"", "Z"}, what=f"pid {pid} is dead")
        return at

    async def stop_process(self, pid: int) -> float:
        """SIGSTOP; returns the moment before it, when it stands still."""
        at = time.monotonic()
        self._stopped.add(pid)
        os.kill(pid, signal.SIGSTOP)
        await wait_until(lambda: _state(pid) == "T", what=f"pid {pid} is stopped")
        return at

    def continue_process(self, pid: int) -> None:
        """SIGCONT."""
        self._stopped.discard(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    async def stop(self) -> None:
        """Ends all processes, in the order of `slotmesh run`."""
        for proxy in (*self.router_proxies, *self.replica_proxies, *self.controller_proxies.values()):
            proxy.heal()
        for pid in [*self._stopped]:
            self.continue_process(pid)
        for services in (self.routers, self.replicas, [self.controller]):
            await asyncio.gather(*(service.stop() for service in services))


@asynccontextmanager
async def faulty_mesh(
    handler: str,
    *,
    replicas: int = 3,
    routers: int = 2,
    proxied: bool = False,
    graceful_timeout_s: float = 5.0,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[FaultyMesh]:
    """A mesh that is ready, for as long as the block lasts; `env` adds to the environment of all processes.

    Endpoint and backend are named as the handler is.
    """
    name = handler.rpartition(":")[2]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slotmesh-")))
        parent = stack.enter_context(ParentPipe())
        surroundings = Surroundings(parent, {**os.environ, "TMPDIR": str(folder), **(env or {})}, folder / "mesh.log")
        stack.callback(surroundings.close)
        launcher = "external" if proxied else "process"
        count = None if proxied else replicas
        backend = Backend(name=name, handler=handler, num_replicas=count, graceful_timeout_s=graceful_timeout_s)
        controller = Service("controller", "controller_service", [f"--launcher={launcher}"], surroundings)
        mesh = FaultyMesh(controller, backend)
        stack.push_async_callback(mesh.stop)
        await mesh.controller.start()

        async def to_controller(name: str) -> str:
            """The flag by which this service finds the controller."""
            if not proxied:
                return f"--controller={mesh.controller.address}"
            proxy = mesh.controller_proxies[name] = await stack.enter_async_context(tcp_proxy(mesh.controller.address))
            return f"--controller={proxy.address}"

        async def add(service: Service, into: list[Service], proxies: list[TcpProxy]) -> None:
            into.append(service)
            await service.start()
            if proxied:
                proxies[len(into) - 1].target = service.address

        if proxied:
            mesh.router_proxies = [await stack.enter_async_context(tcp_proxy()) for _ in range(routers)]
            mesh.replica_proxies = [await stack.enter_async_context(tcp_proxy()) for _ in range(replicas)]
        for number in range(routers):
            label = f"router-{number + 1}"
            flags = [await to_controller(label), f"--router-id={label}", *_advertise(mesh.router_proxies, number)]
            router = Service(label, "router_service", flags, surroundings)
            await add(router, mesh.routers, mesh.router_proxies)
        await mesh.apply()
        for number in range(replicas if proxied else 0):
            label = f"replica-{number + 1}"
            identity = [f"--handler={handler}", f"--backend={name}", f"--replica-id={label}"]
            flags = [await to_controller(label), *identity, *_advertise(mesh.replica_proxies, number)]
            replica = Service(label, "replica_service", flags, surroundings)
            await add(replica, mesh.replicas, mesh.replica_proxies)
        await mesh.wait_linked(replicas)
        yield mesh


def _advertise(proxies: Sequence[TcpProxy], number: int) -> list[str]:
    return [f"--advertise={proxies[number].address}"] if proxies else []


def _state(pid: int) -> str:
    """The letter of a process's state, as `T` for stopped; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
