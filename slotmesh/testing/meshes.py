"""A whole mesh in this process: controller, routers and replicas, over real gRPC on free loopback ports.

Purpose: tests of several replicas, traffic, keys and their owners, slots, failures.
Invariants: everything runs on the event loop that entered the block, handlers included, so that they and the test may
share objects of a loop; the block begins when the mesh is ready, and ends when nothing of it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

from controller_service.app import Controller, open_controller
from controller_service.config import ControllerSettings
from controller_service.core.observed.replica_groups import outdated_among
from controller_service.shell.launchers.protocol import mint_replica_id
from router_service.app import serve as serve_router
from router_service.config import RouterSettings
from slotmesh.client.mesh import Mesh
from slotmesh.server.server import GrpcServer
from slotmesh.spec import model
from slotmesh.spec.descriptor_sets import services_of_files
from slotmesh.testing.backends import Backend, Handler, as_backend
from slotmesh.testing.backends import kept as batch_settings_kept
from slotmesh.testing.launcher import HandlerNames, InProcessLauncher, instance_of

Traffic = Mapping[str, Mapping[str, float] | model.TrafficPolicy]
"""Endpoint -> weights of its backends, or a whole policy."""

GeneratedModules = Mapping[str, Sequence[ModuleType]]
"""Endpoint -> generated modules, as `[greeter_pb2]`; an empty list removes its services."""

START_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_GRACE_S: Final = 5.0
_LOOK_S: Final = 0.005
"""The interval of checks whether the mesh is ready, in seconds."""


class RunningMesh(Mesh):
    """The real client of a mesh under test, with methods to change that mesh."""

    def __init__(self, controller: Controller, launcher: InProcessLauncher, names: HandlerNames) -> None:
        self._controller = controller
        self._launcher = launcher
        self._names = names
        self._router_tasks: dict[str, _Router] = {}

    @property
    def controller_address(self) -> str:
        """`HOST:PORT`, for the command line and for operators' rpcs."""
        return self._controller.address

    @property
    def router_addresses(self) -> list[str]:
        """`HOST:PORT` of each running router, for other clients."""
        return list(self._router_tasks)

    def replica_ids(self, backend: str) -> list[str]:
        """The ready replicas of a backend, sorted by id."""
        replicas = self._controller.state.observed.replicas(backend)
        return sorted(replica.replica_id for replica in replicas if replica.takes_calls)

    def instance(self, replica_id: str) -> Any:
        """The handler of a replica: the constructed object, or the function. Raises KeyError."""
        return instance_of(self._launcher.app(replica_id))

    def instances(self, backend: str) -> list[Any]:
        """The handlers of a backend's replicas, sorted by id."""
        return [self.instance(replica_id) for replica_id in self.replica_ids(backend)]

    async def apply(
        self,
        backends: Mapping[str, Handler | Backend] | None = None,
        traffic: Traffic | None = None,
        *,
        grpc_services: GeneratedModules | None = None,
        timeout: float = START_TIMEOUT_S,
    ) -> None:
        """Changes the mesh as `slotmesh apply` does: other resources are kept. Returns when it is ready again.

        `grpc_services`: endpoint -> generated modules of the user's own protos, whose services it answers.

        Raises:
            InvalidSpec: with every violation.
            TypeError: a target is no handler.
            TimeoutError: it is not ready within `timeout` seconds; the message states what was missing.
            Exception: any exception of a handler's constructor.
        """
        given = {name: as_backend(backend) for name, backend in (backends or {}).items()}
        policies, services = traffic or {}, grpc_services or {}
        spec = model.Mesh(
            backends=tuple(
                replace(each.to_spec(name), handler=self._names.name_of(each)) for name, each in given.items()
            ),
            endpoints=tuple(
                model.Endpoint(
                    name=name,
                    traffic=_policy(policies[name]) if name in policies else None,
                    grpc_services=_services(services[name]) if name in services else None,
                )
                for name in dict.fromkeys([*policies, *services])
            ),
        )
        await self._controller.configurator.apply_mesh(spec, prune=False)
        await self.wait_ready(timeout)

    async def wait_ready(self, timeout: float = START_TIMEOUT_S) -> None:
        """Returns when the wanted replicas alone are ready, with the newest settings, and routers are linked to them.

        Raises:
            TimeoutError: it is not ready within `timeout` seconds; the message states what was missing.
            Exception: any exception of a handler's constructor.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        while lack := self._lacks():
            if self._launcher.first_failure.done():
                raise self._launcher.first_failure.result()
            if loop.time() >= ends:
                raise TimeoutError(f"the mesh is not ready after {timeout:g} s: {lack}")
            await asyncio.sleep(_LOOK_S)

    async def drain_replica(self, replica_id: str) -> None:
        """Stops a replica, as SIGTERM does; it is replaced. Returns when it has ended.

        Raises:
            KeyError: there is no such replica.
        """
        await self._launcher.drain(replica_id)

    async def kill_replica(self, replica_id: str) -> None:
        """Ends a replica immediately; it is replaced. Its running calls fail with REPLICA_LOST.

        As it is no separate process, its `finally` blocks still run, without effect on its callers.

        Raises:
            KeyError: there is no such replica.
        """
        await self._launcher.cut_off(replica_id)

    async def kill_router(self, address: str) -> None:
        """Ends a router immediately. Clients continue at another one, if there is one: it is not replaced.

        Raises:
            KeyError: no router listens there.
        """
        if address not in self._router_tasks:
            raise KeyError(f"no router listens at {address!r}; there are {', '.join(self._router_tasks) or 'none'}")
        await self._router_tasks.pop(address).kill()

    def _lacks(self) -> str:
        """What is missing for the mesh to be ready; empty if it is."""
        observed, table = self._controller.state.observed, self._controller.board.table
        ready: set[str] = set()
        backends = self._controller.store.read().backends
        is_outdated = outdated_among(backends)
        for name, backend in backends.items():
            replicas = [each for each in observed.replicas(name) if not each.is_over]
            taking = {each.replica_id for each in replicas if each.takes_calls}
            wanted = backend.least_replicas
            if backend.autoscale is not None:
                wanted = max(wanted, len(replicas))
            if len(taking) != wanted or len(replicas) != wanted:
                return f"{len(taking)} of {wanted} replicas of {name} take calls, {len(replicas)} run"
            if outdated := [each.replica_id for each in replicas if is_outdated(each)]:
                return f"{', '.join(outdated)} of {name} run earlier settings"
            ready |= taking
        waiting = [it.endpoint for it in self._controller.store.read().shifts.values() if it.is_waiting]
        if waiting:
            return f"the traffic of {', '.join(sorted(waiting))} has not moved yet"
        if table is None or table.revision < self._controller.store.read().revision:
            return "the newest routing table is not there"
        for router in observed.routers.values():
            if router.address in self._router_tasks and (
                (router.generation, router.revision) != (table.generation, table.revision)
                or (not router.links_subset and not ready <= set(router.linked_replica_ids))
                or (router.links_subset and not ready.isdisjoint(router.unlinked_replica_ids))
            ):
                return f"the router at {router.address} is not linked to all replicas"
        attached = {router.address for router in observed.routers.values()}
        return "" if attached >= set(self._router_tasks) else "not all routers are attached"

    async def _begin(self, routers: Sequence[_Router]) -> None:
        """Starts the routers, and connects to them."""
        for router in routers:
            self._router_tasks[await router.start()] = router
        super().__init__(self.router_addresses, CONNECT_TIMEOUT_S, CLOSE_GRACE_S)


@asynccontextmanager
async def mesh(
    backends: Mapping[str, Handler | Backend],
    *,
    traffic: Traffic | None = None,
    grpc_services: GeneratedModules | None = None,
    routers: int = 1,
    balancers: Sequence[str] = (),
    start_timeout: float = START_TIMEOUT_S,
) -> AsyncIterator[RunningMesh]:
    """Runs a whole mesh in this process: `async with slotmesh.testing.mesh({"digits": Digits}) as mesh`.

    The result is a client, as from `slotmesh.connect`.

    Args:
        backends: classes or functions by the names of their backends, local ones too; or `Backend`s with them, for
            settings.
        traffic: endpoint -> weights of its backends. Default: an endpoint for each backend, with its name.
        grpc_services: endpoint -> generated modules of the user's own protos, as `[greeter_pb2]`, whose services it
            answers.
        routers: the number of routers.
        balancers: what backends may name as their `balancer` besides the built-in ones, as `my_balancers:MostMemory`.
        start_timeout: seconds in which the mesh must be ready.

    Raises:
        InvalidSpec: with every violation.
        TypeError: a target is no handler.
        TimeoutError: the mesh is not ready in time; the message states what was missing.
        Exception: any exception of a handler's constructor.
    """
    if routers < 1:
        raise ValueError(f"a mesh has at least one router, got routers={routers}")
    names = HandlerNames()
    launchers: list[InProcessLauncher] = []

    def make_launcher(address: str, on_exit: Any, _logs: Any) -> InProcessLauncher:
        launchers.append(InProcessLauncher(address, on_exit, names, mint_replica_id))
        return launchers[0]

    async with AsyncExitStack() as last:
        last.enter_context(batch_settings_kept(*(as_backend(each).handler for each in backends.values())))
        settings = ControllerSettings(port=0, metrics_port=-1)
        async with open_controller(settings, make_launcher) as controller:
            controller.server.set_serving()
            running = RunningMesh(controller, launchers[0], names)
            members = [_Router(controller.address, ",".join(balancers)) for _ in range(routers)]
            for router in members:
                last.push_async_callback(router.stop)  # where the controller has failed
                launchers[0].stopped_after.append(router.stop)
            await running._begin(members)
            if traffic is None:
                traffic = {name: {name: 1.0} for name in backends}
            await running.apply(backends, traffic, grpc_services=grpc_services, timeout=start_timeout)
            async with running:
                yield running


class _Router:
    """A router in a separate task."""

    def __init__(self, controller: str, balancers: str) -> None:
        self._settings = RouterSettings(port=0, metrics_port=-1, controller=controller, balancers=balancers)
        self._stop_asked = asyncio.Event()
        self._server: asyncio.Future[GrpcServer] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Returns the address."""
        self._task = asyncio.create_task(self._live(), name="router under test")
        await asyncio.wait((self._task, self._server), return_when=asyncio.FIRST_COMPLETED)
        if not self._server.done():
            await self._task
        return self._server.result().address

    async def stop(self) -> None:
        """Returns when it has stopped in order. May be called again."""
        self._stop_asked.set()
        if self._task is not None and not self._task.cancelled():
            await self._task

    async def kill(self) -> None:
        """Cuts its connections, and ends it immediately."""
        await self._server.result().stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _live(self) -> None:
        async with serve_router(self._settings, on_failure=self._stop_asked.set) as server:
            self._server.set_result(server)
            await self._stop_asked.wait()


def _policy(policy: Mapping[str, float] | model.TrafficPolicy) -> model.TrafficPolicy:
    return policy if isinstance(policy, model.TrafficPolicy) else model.TrafficPolicy(weights=dict(policy))


def _services(modules: Sequence[ModuleType]) -> model.GrpcServices:
    return services_of_files([module.DESCRIPTOR for module in modules]) if modules else model.NO_SERVICES
