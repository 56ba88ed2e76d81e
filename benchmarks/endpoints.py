"""A mesh of 10,000 endpoints: how long an apply takes, and for how long controller and router are silent meanwhile.

Silence is the longest time that a health check takes, which is asked of each process every few milliseconds: its event
loop was held up, or other processes had the processors.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.processes import ProcessMesh, process_mesh
from benchmarks.progress import show
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

ENDPOINTS: Final = 10_000
MOST_APPLY_S: Final = 5.0
MOST_SILENCE_S: Final = 0.2
_ASK_EVERY_S: Final = 0.005
_SETTLED_S: Final = 3.0
"""No new table for so long: what the change has led to is over."""
_POLICY: Final = TrafficPolicy(weights={"echo": 1.0})


class OwnLag:
    """How long this process's own event loop was blocked: it could send no request in that time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(_ASK_EVERY_S)
            self.seconds += max(0.0, time.monotonic() - began - _ASK_EVERY_S)


@dataclass
class Silence:
    """The longest time without an answer of one process."""

    address: str
    own: OwnLag
    longest_s: float = 0.0

    async def watch(self) -> None:
        """Until cancelled."""
        async with open_channel(self.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            while True:
                asked, own_s = time.monotonic(), self.own.seconds
                try:
                    await stub.Check(health_pb2.HealthCheckRequest())
                except grpc.aio.AioRpcError:
                    asked = min(asked, time.monotonic() - MOST_APPLY_S)
                self.longest_s = max(self.longest_s, time.monotonic() - asked - (self.own.seconds - own_s))
                await asyncio.sleep(_ASK_EVERY_S)


async def measure() -> list[Finding]:
    spec = Mesh(
        backends=(Backend(name="echo", handler="benchmarks.handler:Echo", num_replicas=2),),
        endpoints=(Endpoint(name="echo", traffic=_POLICY),),
    )
    show(f"endpoints: {ENDPOINTS:,} in one apply")
    async with process_mesh(spec) as mesh:
        more = Mesh(endpoints=tuple(Endpoint(name=f"endpoint-{it:05}", traffic=_POLICY) for it in range(ENDPOINTS)))
        own = OwnLag()
        controller, router = Silence(mesh.controller.address, own), Silence(mesh.routers[0].address, own)
        watching = [asyncio.ensure_future(each.watch()) for each in (own, controller, router)]
        try:
            began = time.monotonic()
            await mesh.operator.apply(more)
            applied_s = time.monotonic() - began
            in_force_s = await _settled(mesh) - began
            show("endpoints: another router starts")
            began = time.monotonic()
            await mesh.add_router()
            await mesh.wait_ready()
            serves_s = time.monotonic() - began
        finally:
            for each in watching:
                each.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        memory = [each.rss_bytes() for each in (mesh.controller, mesh.routers[0])]
    show("")
    title = f"{ENDPOINTS:,} endpoints"
    return [
        findings.at_most("endpoints_apply", f"{title}: apply answered", applied_s, MOST_APPLY_S, findings.milliseconds),
        findings.figure(
            "endpoints_in_force", f"{title}: all in force at the router", in_force_s, findings.milliseconds
        ),
        findings.at_most(
            "endpoints_controller",
            "the controller's longest silence",
            *(controller.longest_s, MOST_SILENCE_S, findings.milliseconds),
        ),
        findings.at_most(
            "endpoints_router",
            "the router's longest silence",
            *(router.longest_s, MOST_SILENCE_S, findings.milliseconds),
        ),
        findings.figure("endpoints_start", "a router's start until it serves them", serves_s, findings.milliseconds),
        findings.figure("endpoints_controller_memory", "the controller's memory", memory[0], findings.megabytes),
        findings.figure("endpoints_router_memory", "the router's memory", memory[1], findings.megabytes),
    ]


async def _settled(mesh: ProcessMesh) -> float:
    """When the router's newest table came in force, once none has followed for a while: seconds (monotonic)."""
    revision, since = -1, time.monotonic()
    while time.monotonic() - since < _SETTLED_S:
        members = await mesh.operator.members()
        newest = max((router.table_revision for router in members.routers if members.is_current(router)), default=-1)
        if newest != revision:
            revision, since = newest, time.monotonic()
        await asyncio.sleep(0.05)
    return since
