"""A mesh whose controllers keep their state in etcd: the leading controller and etcd's leader are killed under load."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

import slotmesh
from slotmesh.cli.operator import Operator
from slotmesh.runtime.parent import ParentPipe
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from tests.e2e.test_controller_returns import Load
from tests.support.etcd import EtcdCluster, etcd_cluster, needs_etcd
from tests.support.faults import Service, Surroundings
from tests.support.shell import slotmesh as command
from tests.support.wait import wait_until

pytestmark = needs_etcd
BOUND_S: Final = 30.0
HANDLER: Final = "tests.e2e.traffic_handlers:Version"
SPEC: Final = Mesh(
    backends=(Backend(name="v1", handler=HANDLER, user_config={"name": "v1"}),),
    endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0})),),
)


class EtcdMesh:
    """The processes."""

    def __init__(self, cluster: EtcdCluster, controllers: list[Service], routers: list[Service]) -> None:
        self.cluster = cluster
        self.controllers = controllers
        self.routers = routers

    async def leads(self, controller: Service, term: int) -> float:
        """Waits until it leads under this term; returns how long that took."""
        begin = time.monotonic()
        while True:
            async with Operator.at(",".join(it.address for it in self.controllers)) as operator:
                standing = await operator.standing()
            if (standing.address, standing.role.term) == (controller.address, term):
                return time.monotonic() - begin
            assert time.monotonic() < begin + BOUND_S, f"not in time: {standing}\n{controller.log_text}"
            await asyncio.sleep(0.02)

    async def is_current(self) -> None:
        """Waits until all routers have the newest table, and links to both replicas."""
        begin = time.monotonic()
        while True:
            async with Operator.at(",".join(it.address for it in self.controllers)) as operator:
                members = await operator.members()
            ready = members.ready()
            current = [it for it in members.routers if members.is_current(it) and ready.issubset(it.linked_replica_ids)]
            if len(ready) == 2 and len(current) == len(self.routers):
                return
            assert time.monotonic() < begin + BOUND_S, f"not in time: {members}\n{self.controllers[0].log_text}"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[EtcdMesh]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(etcd_cluster(folder / "etcd", 3))
        surroundings = Surroundings(stack.enter_context(ParentPipe()), {**os.environ}, folder / "log")
        stack.callback(surroundings.close)

        async def started(name: str, module: str, *flags: str) -> Service:
            service = Service(name, module, flags, surroundings)
            stack.push_async_callback(service.stop)
            await service.start()
            return service

        state = f"--state={cluster.place()}"
        controllers = [await started(it, "controller_service", "--launcher=external", state) for it in ("c1", "c2")]
        at = f"--controller={','.join(it.address for it in controllers)}"
        routers = [await started(it, "router_service", at, f"--router-id={it}") for it in ("r1", "r2")]
        mesh = EtcdMesh(cluster, controllers, routers)
        await mesh.leads(controllers[0], 1)
        async with Operator.at(controllers[0].address) as operator:
            await operator.apply(SPEC)
        for number in range(2):
            flags = (at, f"--handler={HANDLER}", "--backend=v1", f"--replica-id=v1-{number}")
            await started(f"v1-{number}", "replica_service", *flags)
        await mesh.is_current()
        yield mesh


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_no_call_fails_when_the_controller_and_the_leader_of_etcd_are_killed() -> None:
    with tempfile.TemporaryDirectory(prefix="slotmesh-") as folder:
        async with running(Path(folder)) as mesh:
            first, second = mesh.controllers
            address = {"SLOTMESH_CONTROLLER": f"{first.address},{second.address}"}
            async with slotmesh.connect([it.address for it in mesh.routers]) as client:
                load = Load(client)
                pouring = asyncio.create_task(load.run())
                await wait_until(lambda: load.since.get("v1", 0) > 100, timeout=BOUND_S, what="calls")
                await first.kill()
                took_s = await mesh.leads(second, 2)
                leader = await mesh.cluster.leader()
                leader.kill()
                begin = time.monotonic()
                changed = await command("apply", "-", env=address, stdin=YAML)
                changed_s = time.monotonic() - begin
                assert changed.status == 0, changed
                await mesh.is_current()
                assert '"v1": 1.0' in (await command("traffic", "e", "--json", env=address)).out
                load.since.clear()
                await wait_until(lambda: load.since.get("v1", 0) > 100, timeout=BOUND_S, what="calls")
                load.stop()
                answered = await pouring
            assert answered > 300
            print(f"{answered} calls; led after {took_s:.2f} s; changed after {changed_s:.2f} s")  # noqa: T201 - measured


YAML: Final = """
backends:
  v1: {handler: "tests.e2e.traffic_handlers:Version", user_config: {name: v1}, max_queue_time: 20s}
endpoints: {e: {traffic: {v1: 1.0}}}
"""
