"""Chaos: every process of a mesh is killed, stopped, asked to leave and cut off, the controller too, by a seed.

One fault follows the other, and now and then two come together. Whoever died is started again under its old name; a
controller remembers nothing then, and is told once more what should run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from replica_service.core.runs import FRESH_S
from tests.history.log import HistoryLog
from tests.history.model import Death, Fault
from tests.support.faults import FaultyMesh, Service
from tests.support.tcp_proxy import BOTH, Direction, TcpProxy

LONGEST_S: Final = 4.0
"""Of a stop and of a cut."""
REST_S: Final = 1.5
"""Between two faults."""
TOGETHER: Final = 0.3
"""How often two faults come together."""

_NO_END_S: Final = 1e9
"""Until a client has moved, whenever that is. JSON has no infinity."""

Act = Callable[[], Awaitable[None]]


class Chaos:
    """Breaks things for so long, by chance."""

    def __init__(self, mesh: FaultyMesh, log: HistoryLog, seed: int) -> None:
        self._mesh = mesh
        self._log = log
        self._chance = random.Random(seed)

    async def run(self, seconds: float) -> None:
        """Returns when everything is whole again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            services = self._chance.sample(self._services(), 2 if self._chance.random() < TOGETHER else 1)
            await asyncio.gather(*(self._fault_of(each)() for each in services))
            await self._mesh.wait_linked(len(self._mesh.replicas) or self._mesh.backend.num_replicas or 0)
            await asyncio.sleep(REST_S * self._chance.random())

    def _services(self) -> list[Service]:
        mesh = self._mesh
        return [mesh.controller, *mesh.routers, *mesh.replicas]

    def _fault_of(self, service: Service) -> Act:
        kinds: list[Act] = [
            partial(self._kill, service),
            partial(self._leave, service),
            partial(self._stop, service, self._chance.uniform(0.5, LONGEST_S)),
        ]
        kinds += [
            partial(self._cut, service, proxy, name, self._directions(), self._chance.uniform(0.5, LONGEST_S))
            for name, proxy in self._mesh.proxies_of(service)
        ]
        return self._chance.choice(kinds)

    def _directions(self) -> frozenset[Direction]:
        return self._chance.choice([BOTH, frozenset({Direction.UP}), frozenset({Direction.DOWN})])

    async def _kill(self, service: Service) -> None:
        pid = service.pid
        at = await service.kill()
        if service in self._mesh.replicas:
            self._log.add(Death(pid=pid, at=at))
        await self._mesh.start_again(service)
        self._note(f"SIGKILL of {service.name}", at, "died of SIGKILL")

    async def _leave(self, service: Service) -> None:
        at = time.monotonic()
        await service.stop()
        await self._mesh.start_again(service)
        self._note(f"SIGTERM of {service.name}", at, "it left")

    async def _stop(self, service: Service, seconds: float) -> None:
        pid = service.pid
        at = await self._mesh.stop_process(pid)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._mesh.continue_process(pid)
        self._note(f"SIGSTOP of {service.name}", at, "it stood still", holds_calls_s=self._holds_calls_s(service))

    async def _cut(
        self, service: Service, proxy: TcpProxy, name: str, directions: frozenset[Direction], seconds: float
    ) -> None:
        at = time.monotonic()
        proxy.stall(directions)
        try:
            await asyncio.sleep(seconds)
        finally:
            proxy.heal()
        what = f"{name} cut, {' and '.join(sorted(it.value for it in directions))}"
        is_on_the_way = Direction.UP in directions and not name.endswith("from the controller")
        self._note(what, at, "packets vanished", holds_calls_s=self._holds_calls_s(service) if is_on_the_way else 0.0)

    def _holds_calls_s(self, service: Service) -> float:
        """Until when calls start that were held up on their way to this service."""
        if service in self._mesh.routers:
            return _NO_END_S
        return FRESH_S if service in self._mesh.replicas else 0.0

    def _note(self, what: str, at: float, seen: str, *, holds_calls_s: float = 0.0) -> None:
        self._log.add(Fault(what=what, at=at, cleared_at=time.monotonic(), seen=seen, holds_calls_s=holds_calls_s))
