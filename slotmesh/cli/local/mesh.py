"""Starts and owns the processes of a local mesh.

Order of start: requested ports are checked and handlers described, and all problems of these are reported; controller;
routers; the ingress, if any; then the controller gets the configuration and launches replicas. `stopping.py` has the
order of stop.
Invariants: no process is left over: each child is waited for, and ends by itself when this process is killed.
Owner: the `run` command, on one event loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from slotmesh.cli.console import FAILED, INTERRUPTED, CommandFailed, looks
from slotmesh.cli.credentials import credentials
from slotmesh.cli.local.child import Child
from slotmesh.cli.local.order import Order, first_failure, lacks, says_why
from slotmesh.cli.local.reloading import Reloader, check_handler, unnamed
from slotmesh.cli.local.stopping import MeshProcesses, Shutdown
from slotmesh.cli.operator import Operator
from slotmesh.runtime.parent import ParentPipe
from slotmesh.runtime.signals import stop_signals
from slotmesh.units import format_duration

HOST: Final = "127.0.0.1"
"""A local mesh is there for this machine only."""


def port_problems(ports: Mapping[str, int]) -> list[str]:
    """Errors of the ports, by the option of each. 0 is always right.

    A port that is free now can be taken a moment later: then the server that needs it reports it.
    """
    problems = []
    for option, port in ports.items():
        if problem := _problem(port):
            problems.append(f"{option}: {problem}; choose another, or 0 for any free one")
    return problems


def _problem(port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a connection that was closed a minute ago does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"port {port} is in use"
            return f"cannot listen on port {port}: {os.strerror(error.errno or 0)}"
    return ""


POLL_S: Final = 0.05
"""How soon a change of the members is seen while the mesh starts."""
LAST_WORDS_S: Final = 1.0
"""The end of a process is often seen before its last report."""

Tell = Callable[[str], object]


class LocalMesh:
    """A mesh that is being started, runs, or is being stopped."""

    def __init__(self, order: Order, parent: ParentPipe, tell: Tell) -> None:
        self._order = order
        self._parent = parent
        self._tell = tell
        self._controller: Child | None = None
        self._routers: list[Child] = []
        self._ingress: Child | None = None
        self._watches: list[asyncio.Task[None]] = []
        self._loss = ""
        self._lost = asyncio.Event()
        # Before a module is imported: what changes from now on is seen.
        self._reloader = Reloader(order.mesh, order.file, order.protos, parent, tell) if order.reloads else None

    @property
    def endpoint_name(self) -> str:
        """Of the first endpoint; empty if there is none."""
        return self._order.endpoint_name

    @property
    def controller_address(self) -> str:
        return self._controller.address if self._controller is not None else ""

    @property
    def router_addresses(self) -> list[str]:
        return [router.address for router in self._routers]

    @property
    def http_address(self) -> str:
        """Empty if there is no ingress."""
        return self._ingress.address if self._ingress is not None else ""

    @property
    def has_processes(self) -> bool:
        """Whether a process was started."""
        return self._controller is not None

    async def start(self) -> None:
        """Starts everything, and waits until it is ready.

        Raises:
            CommandFailed: it did not get ready, and why.
        """
        order = self._order
        still = "the handler is being imported"
        try:
            async with asyncio.timeout(order.start_timeout.total_seconds()):
                await self._check()
                still = "the controller does not serve yet"
                controller = await self._start_controller()
                still = "the routers do not serve yet"
                await self._start_routers(controller)
                still = "the ingress does not serve yet"
                if order.http_port is not None:
                    await self._start_ingress(controller, order.http_port)
                async with Operator.at(controller) as operator:
                    await operator.apply_file(unnamed(order.mesh) if order.reloads else order.mesh, force=True)
                    async for _ in looks(POLL_S, None):
                        snapshot = await operator.snapshot()
                        if first_failure(order, snapshot.members) is not None:
                            raise await self._why_it_failed(operator)
                        now_lacks = lacks(order, snapshot)
                        if not now_lacks:
                            return
                        if now_lacks != still:
                            self._tell(now_lacks)
                            still = now_lacks
        except TimeoutError:
            limit = format_duration(order.start_timeout)
            raise CommandFailed(f"not ready within {limit}: {still}; give it more time with --start-timeout") from None

    async def _check(self) -> None:
        """Raises CommandFailed with all problems of ports and handlers, before anything is started."""
        order, status = self._order, FAILED
        ports = {"--controller-port": order.controller_port, "--router-port": order.router_port}
        if order.http_port is not None:
            ports["--http"] = order.http_port
        problems = port_problems(ports)
        for handler in order.handlers:
            self._tell(f"looking at {handler}")
            try:
                await check_handler(handler, self._parent)
            except CommandFailed as failure:
                problems.append(str(failure))
                status = failure.exit_code
        if problems:
            raise CommandFailed("\n".join(problems), status)

    async def wait_for_loss(self) -> None:
        """Never returns: raises CommandFailed when a process ends unexpectedly."""
        await self._lost.wait()
        raise CommandFailed(self._loss)

    async def follow_changes(self) -> None:
        """Never returns. Follows changed files with `reloads`; otherwise waits for the loss of a process."""
        if self._reloader is None:
            await self.wait_for_loss()
        else:
            async with Operator.at(self.controller_address) as operator:
                await self._reloader.follow(operator)

    async def stop(self) -> None:
        """Ends all processes, in order, and waits for them. Raises CommandFailed if a second Ctrl-C cut that short."""
        for watch in self._watches:
            watch.cancel()
        processes = MeshProcesses(self._ingress, self._routers, self._controller)
        if not await Shutdown(processes, self._order.grace_s, self._tell).run():
            raise CommandFailed("interrupted: processes were killed, and the calls that ran in them", INTERRUPTED)

    async def _start_controller(self) -> str:
        order = self._order
        flags = ["--launcher=process", f"--state={order.state}", "--if-in-use=refuse", "--await-apply"]
        flags += [f"--devices={order.devices}"] if order.devices else []
        self._controller = await self._launch("controller", "controller_service", order.controller_port, *flags)
        return await self._serves(self._controller, "controller")

    async def _start_routers(self, controller: str) -> None:
        order = self._order
        for number, router_id in enumerate(order.router_ids):
            flags = (f"--controller={controller}", f"--router-id={router_id}", f"--graceful-timeout={order.grace_s:g}s")
            port = order.router_port if number == 0 else 0
            self._routers.append(await self._launch(router_id, "router_service", port, *flags))
        for child in self._routers:
            await self._serves(child, child.name)

    async def _start_ingress(self, controller: str, port: int) -> None:
        routers, grace = ",".join(self.router_addresses), f"--graceful-timeout={self._order.grace_s:g}s"
        flags = (f"--controller={controller}", f"--routers={routers}", grace)
        self._ingress = await self._launch("ingress", "ingress_service", port, *flags)
        await self._serves(self._ingress, "HTTP")

    async def _launch(self, name: str, module: str, port: int, *flags: str) -> Child:
        common = (f"--host={HOST}", f"--port={port}", "--metrics-port=0", f"--log-level={self._order.log_level}")
        return await Child.start(name, module, [*common, *credentials().of_members, *flags], self._parent)

    async def _serves(self, child: Child, name: str) -> str:
        """Waits until it does; from then on, its end is that of the mesh."""
        address = await child.announced()
        self._watch(child)
        self._tell(f"{name} at {address}")
        return address

    def _watch(self, child: Child) -> None:
        async def watch() -> None:
            end = await child.ended()
            if not self._lost.is_set():
                self._loss = f"the {child.name} is gone, and with it the mesh: {end}"
                self._lost.set()

        self._watches.append(asyncio.get_running_loop().create_task(watch(), name=f"watch-{child.name}"))

    async def _why_it_failed(self, operator: Operator) -> CommandFailed:
        """Waits a moment for the traceback of a replica that is known to have failed."""
        async for is_last in looks(POLL_S, LAST_WORDS_S):
            failed = first_failure(self._order, await operator.members())
            if failed is not None and (says_why(failed) or is_last):
                why = failed.error.rstrip() or "it did not say why"
                handler = next(it.handler for it in self._order.mesh.backends if it.name == failed.backend)
                return CommandFailed(f"{why}\n{handler} cannot start: replica {failed.replica_id} failed")
        raise AssertionError("it looks until it knows")


async def run_until_stopped(order: Order, tell: Tell, announce: Callable[[LocalMesh], object]) -> None:
    """Runs a mesh until SIGINT or SIGTERM; `announce` is called when it is ready.

    Raises:
        CommandFailed: it could not start, or lost a process.
    """
    with stop_signals() as stop, ParentPipe() as parent:
        mesh = LocalMesh(order, parent, tell)

        async def serve() -> None:
            await mesh.start()
            announce(mesh)
            await mesh.follow_changes()

        try:
            await _first_of(stop.wait(), mesh.wait_for_loss(), serve())
        finally:
            if mesh.has_processes:
                tell("stopping")
            await mesh.stop()


async def _first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Returns or raises as the first one that ends; the others are cancelled and awaited before that."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done:
            task.result()
