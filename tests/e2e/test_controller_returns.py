"""A controller that is killed under load, and started again with its state file: no caller notices."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

import slotmesh
from slotmesh.cli.controller_view import Members
from slotmesh.cli.operator import Operator
from slotmesh.runtime.parent import ParentPipe
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from tests.support.faults import Service, Surroundings
from tests.support.shell import slotmesh as command

pytestmark = pytest.mark.long

AWAY_S: Final = float(os.environ.get("SLOTMESH_TEST_AWAY_S", "2"))
"""How long there is no controller; a minute when it is measured."""
RIGHT_WITHIN_S: Final = 20.0
"""A bound for a busy machine: it takes about a second."""
ROUTERS: Final = 2
WORKERS: Final = 4
BURST: Final = 8
HANDLER: Final = "tests.e2e.traffic_handlers:Version"
SPEC: Final = Mesh(
    backends=tuple(Backend(name=name, handler=HANDLER, user_config={"name": name}) for name in ("v1", "v2")),
    endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0, "v2": 0.0})),),
)


class Running:
    """The processes."""

    def __init__(self, controller: Service, routers: list[Service], replicas: dict[str, Service]) -> None:
        self.controller = controller
        self.routers = routers
        self.replicas = replicas

    async def members(self) -> Members:
        async with Operator.at(self.controller.address) as operator:
            return await operator.members()

    async def wait_right(self) -> float:
        """Waits until the controller shows all that is there; returns how long that took."""
        begin = time.monotonic()
        while True:
            members = await self.members()
            ready = members.ready()
            current = [it for it in members.routers if members.is_current(it) and ready.issubset(it.linked_replica_ids)]
            if ready == self.replicas.keys() and len(current) == len(self.routers):
                return time.monotonic() - begin
            assert time.monotonic() < begin + RIGHT_WITHIN_S, f"not in time: {members}\n{self.controller.log_text}"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    async with AsyncExitStack() as stack:
        surroundings = Surroundings(stack.enter_context(ParentPipe()), {**os.environ}, folder / "log")
        stack.callback(surroundings.close)

        async def started(name: str, module: str, *flags: str) -> Service:
            service = Service(name, module, flags, surroundings)
            stack.push_async_callback(service.stop)
            await service.start()
            return service

        state = f"--state={folder / 'mesh.state'}"
        controller = await started("controller", "controller_service", "--launcher=external", state)
        at = f"--controller={controller.address}"
        routers = [
            await started(f"r{number}", "router_service", at, f"--router-id=r{number}") for number in range(ROUTERS)
        ]
        async with Operator.at(controller.address) as operator:
            await operator.apply(SPEC)
        replicas = {
            f"{name}-{number}": await started(
                name,
                "replica_service",
                at,
                f"--handler={HANDLER}",
                f"--backend={name}",
                f"--replica-id={name}-{number}",
            )
            for name in ("v1", "v2")
            for number in range(2)
        }
        mesh = Running(controller, routers, replicas)
        await mesh.wait_right()
        yield mesh


class Load:
    """Calls with and without ordering keys, all the time."""

    def __init__(self, client: slotmesh.Mesh) -> None:
        self._endpoint = client.endpoint("e")
        self._numbers = count()
        self._stop = asyncio.Event()
        self.since: dict[str, int] = {}
        """Answers by backend since they were last looked at."""

    async def run(self) -> int:
        """Returns how many calls were answered; raises what any of them failed with."""
        return sum(await asyncio.gather(*(self._work(f"key{number}") for number in range(WORKERS))))

    async def wait_for_moves(self, backend: str) -> None:
        """Returns when each key has its owner there: hand-overs that are under way end only with a controller."""
        while True:
            self.since.clear()
            await asyncio.sleep(0.3)
            if set(self.since) == {backend}:
                return

    def stop(self) -> None:
        self._stop.set()

    async def _work(self, key: str) -> int:
        unkeyed, keyed = self._endpoint.method("name"), self._endpoint.ordered(key).method("name")
        answered = 0
        while not self._stop.is_set():
            calls = [method(next(self._numbers)) for method in (unkeyed, keyed) for _ in range(BURST)]
            for name in await asyncio.gather(*calls):
                self.since[name] = self.since.get(name, 0) + 1
            answered += len(calls)
            await asyncio.sleep(0.01)
        return answered


@pytest.mark.asyncio
@pytest.mark.timeout(60 + 2 * AWAY_S)
async def test_no_call_fails_and_the_traffic_that_was_set_is_in_force() -> None:
    with tempfile.TemporaryDirectory(prefix="slotmesh-") as folder:
        async with running(Path(folder)) as mesh:
            addresses = [router.address for router in mesh.routers]
            before = await mesh.members()
            async with slotmesh.connect(addresses) as client:
                load = Load(client)
                pouring = asyncio.create_task(load.run())
                address = {"SLOTMESH_ADDRESS": mesh.controller.address}
                assert (await command("traffic", "e", "v1=0", "v2=1", env=address)).status == 0
                await load.wait_for_moves("v2")
                await mesh.controller.kill()
                load.since.clear()
                await asyncio.sleep(AWAY_S)
                await mesh.controller.start()
                right_after_s = await mesh.wait_right()
                shown = await command("traffic", "e", "--json", env=address)
                assert '"v2": 1.0' in shown.out
                assert set(load.since) == {"v2"}, "the policy is in force all the time"
                load.stop()
                answered = await pouring
            after = await mesh.members()
            assert answered > 100
            assert after.generation == before.generation
            assert {it.replica_id: it.pid for it in after.replicas} == {it.replica_id: it.pid for it in before.replicas}
            assert right_after_s < RIGHT_WITHIN_S
            print(f"{answered} calls, right {right_after_s:.2f} s after the controller served")  # noqa: T201 - measured
