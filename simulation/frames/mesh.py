"""A mesh whose frames are counted.

Invariants: one seed gives one course of events; each call has one result, its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from random import Random
from typing import TYPE_CHECKING

from router_service.core.rosters import RosterVersion, TableRoster
from router_service.core.routing_table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from simulation.frames.client import FramesClient
from simulation.frames.machine import Machine
from simulation.frames.replica import FramesReplica, Wire
from simulation.frames.router import ENDPOINT, FramesRouter
from simulation.kernel import Kernel
from simulation.payloads import call_of
from simulation.queues.figures import quantile
from slotmesh.spec.model import Backend

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from simulation.frames.pump import Pump
    from simulation.frames.settings import FramesSettings

_BACKEND = "backend"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFigures:
    """Of the calls that were measured. A function of the settings: nothing here depends on the machine."""

    calls_per_s: float
    latency_mean_s: float
    latency_p99_s: float
    queue_p50_s: float
    """From making a call to the start of its service."""
    queue_p99_s: float
    up_to_router: float
    """Calls in a frame: from clients to routers; then from there to replicas, and back."""
    out_to_replica: float
    back_to_router: float
    down_to_client: float
    router_s: float
    """Processor time of the routers, a call."""


class FrameMesh:
    """Clients, routers and replicas, each a process."""

    def __init__(self, settings: FramesSettings) -> None:
        self._settings = settings
        self._kernel = Kernel()
        machine = Machine(self._kernel, settings.cores)
        services, routers, arrivals = (
            Random(f"{settings.seed} {name}") for name in ("services", "routers", "arrivals")
        )
        self._clients = [FramesClient(self._kernel, machine, settings, arrivals) for _ in range(settings.clients)]
        self._routers = [
            FramesRouter(self._kernel, machine, settings.costs, routers.random) for _ in range(settings.routers)
        ]
        draw = partial(services.expovariate, 1.0 / settings.service_s)
        self._replicas = [FramesReplica(self._kernel, machine, settings, draw) for _ in range(settings.replicas)]
        self._wires: list[Wire] = []
        self._connect()

    def run(self) -> FrameFigures:
        """Begins, warms up, measures."""
        settings, kernel = self._settings, self._kernel
        for number, client in enumerate(self._clients):
            self._routers[number % len(self._routers)].connect(client)
            client.begin()
        kernel.run(lambda: self._answered() >= settings.warm_up)
        began, skipped = kernel.now, [len(client.latencies_s) for client in self._clients]
        before, answered, busy_s = self._counts(), self._answered(), self._router_s()
        for replica in self._replicas:
            replica.started_at.clear()
        kernel.run(lambda: self._answered() >= answered + settings.calls)
        calls = self._answered() - answered
        sizes = [
            (after[1] - earlier[1]) / max(1, after[0] - earlier[0])
            for after, earlier in zip(self._counts(), before, strict=True)
        ]
        latencies_s = sorted(
            each for client, skip in zip(self._clients, skipped, strict=True) for each in client.latencies_s[skip:]
        )
        queued_s = self._queued_s()
        return FrameFigures(
            calls_per_s=calls / (kernel.now - began),
            latency_mean_s=sum(latencies_s) / len(latencies_s),
            latency_p99_s=quantile(latencies_s, 0.99),
            queue_p50_s=quantile(queued_s, 0.5),
            queue_p99_s=quantile(queued_s, 0.99),
            up_to_router=sizes[0],
            out_to_replica=sizes[1],
            back_to_router=sizes[2],
            down_to_client=sizes[3],
            router_s=(self._router_s() - busy_s) / calls,
        )

    def _connect(self) -> None:
        settings = self._settings
        routes = [
            ReplicaRoute(key=(f"replica-{number}", ""), address="", max_ongoing=settings.slots)
            for number in range(settings.replicas)
        ]
        table = RoutingTable(
            generation="simulation",
            endpoints={ENDPOINT: EndpointRoute(name=ENDPOINT, weights={_BACKEND: 1.0})},
            backends={_BACKEND: BackendRoute(settings=Backend(name=_BACKEND, max_queued_calls=2**30), replicas=routes)},
            roster=TableRoster(RosterVersion("simulation", 1)),
        )
        replica_of = {route.key: replica for route, replica in zip(routes, self._replicas, strict=True)}
        for router in self._routers:
            for far in router.apply(table):
                self._wires.append(Wire(replica_of[far.key], router, far, self._kernel, settings))

    def _answered(self) -> int:
        return sum(len(client.latencies_s) for client in self._clients)

    def _router_s(self) -> float:
        return sum(router.process.busy_s for router in self._routers)

    def _queued_s(self) -> list[float]:
        """Ids tell calls of one client apart; of several, only the first one's are looked at."""
        made_at = self._clients[0].made_at
        if len(self._clients) > 1:
            return [0.0]
        started = chain.from_iterable(replica.started_at for replica in self._replicas)
        return sorted(started_at - made_at[call_of(payload)] for payload, started_at in started)

    def _counts(self) -> list[tuple[int, int]]:
        """Frames and calls, hop by hop."""
        hops: Iterable[list[Pump[Any]]] = (
            [client.outbox for client in self._clients],
            [pump for router in self._routers for pump in router.to_replicas],
            [wire.outbox for wire in self._wires],
            [pump for router in self._routers for pump in router.to_clients],
        )
        return [(sum(pump.frames for pump in hop), sum(pump.calls for pump in hop)) for hop in hops]
