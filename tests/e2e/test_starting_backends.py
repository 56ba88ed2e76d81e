"""Backends whose replicas do not start, or have not started yet: what becomes of the calls of their endpoints."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

import slotmesh
from benchmarks.processes import ProcessMesh, process_mesh
from slotmesh.cli.controller_view import FAILED_STATE
from slotmesh.client.mesh import Mesh as Client
from slotmesh.spec.model import Backend, Endpoint, JsonValue, Mesh, TrafficPolicy
from tests.support.metrics import Metrics
from tests.support.tiers import long

BROKEN = "tests.e2e.starting_handlers:Broken"
GATED = "tests.e2e.starting_handlers:Gated"
GOOD = "tests.e2e.traffic_handlers:Version"
TIMEOUT_S = 30.0


def spec(weights: dict[str, float], shadows: dict[str, float] | None = None, **handlers: str) -> Mesh:
    """One endpoint `e`; the handler of each backend."""
    traffic = TrafficPolicy(weights=weights, shadows=shadows or {})
    return Mesh(
        backends=tuple(backend(name, handler) for name, handler in handlers.items()),
        endpoints=(Endpoint(name="e", traffic=traffic),),
    )


def backend(name: str, handler: str, **config: JsonValue) -> Backend:
    return Backend(name=name, handler=handler, user_config={"name": name, **config})


WITHOUT_ENDPOINT: Final = Mesh(backends=(backend("b", GOOD),))
"""The endpoint is new in the next change: the traffic of one that has a ready backend would stay there."""


async def apply(mesh: ProcessMesh, wanted: Mesh) -> None:
    """Puts it in force at the routers, whatever becomes of the replicas."""
    change = await mesh.operator.apply(wanted, prune=True)
    await mesh.wait_for_revision(change.revision)


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    """Asks again and again, until the answer is yes."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await ask():
                return
            await asyncio.sleep(0.02)


async def names(client: Client, calls: int, shard: str = "", lane: str = "") -> Counter[str]:
    """Which backend answers each of so many calls, made at once."""
    endpoint = client.endpoint("e").options(timeout=TIMEOUT_S)
    if shard:
        endpoint = endpoint.options(shard_key=shard)
    method = (endpoint.ordered(lane) if lane else endpoint).method("name")
    return Counter(await asyncio.gather(*(method(number) for number in range(calls))))


@pytest.mark.asyncio
@pytest.mark.parametrize("handler", [BROKEN, long("tests.e2e.starting_handlers:NoSuchHandler")])
async def test_a_canary_that_does_not_start_costs_no_call(handler: str) -> None:
    good = spec({"good": 1.0}, good=GOOD)
    canary = spec({"good": 0.9, "canary": 0.1}, good=GOOD, canary=handler)
    async with process_mesh(good) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        during = asyncio.create_task(names(client, 300))
        await apply(mesh, canary)
        assert await names(client, 300) == {"good": 300}, "from the first moment"
        assert await during == {"good": 300}

        async def has_failed() -> bool:
            return any(it.state == FAILED_STATE for it in (await mesh.operator.members()).replicas)

        await until(has_failed)
        assert await names(client, 1000) == {"good": 1000}
        assert await names(client, 100, shard="s1") == {"good": 100}
        assert await names(client, 100, shard="s2") == {"good": 100}
        assert await names(client, 100, lane="k") == {"good": 100}
        await apply(mesh, spec({"good": 1.0}, {"canary": 0.5}, good=GOOD, canary=handler))
        assert await names(client, 100) == {"good": 100}, "nor does a shadow"
        await apply(mesh, spec({"good": 0.5, "canary": 0.5}, good=GOOD, canary=GOOD))

        async def has_its_share() -> bool:
            return (await names(client, 50))["canary"] > 0

        await until(has_its_share)


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{}, long({"shard": "s"}), long({"lane": "k"})])
async def test_calls_fail_at_once_where_nothing_starts(options: dict[str, str]) -> None:
    async with process_mesh(WITHOUT_ENDPOINT) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        await apply(mesh, spec({"broken": 1.0}, broken=BROKEN))
        waiting = asyncio.create_task(names(client, 10, **options))
        with pytest.raises(slotmesh.BackendUnavailable, match="its replicas fail to start") as caught:
            await waiting
        assert caught.value.executed is slotmesh.Executed.NO
        assert caught.value.retry_delay_s
        with pytest.raises(slotmesh.BackendUnavailable):
            await names(client, 1, **options)
        await apply(mesh, spec({"broken": 1.0}, broken=GOOD))
        assert await names(client, 10, **options) == {"broken": 10}, "they wait for what is mended"


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{}, {"lane": "k"}])
async def test_calls_wait_for_replicas_that_are_starting(options: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    traffic = TrafficPolicy(weights={"gated": 1.0})
    gated = Mesh(backends=(backend("gated", GATED, gate=str(gate)),), endpoints=(Endpoint(name="e", traffic=traffic),))
    async with (
        process_mesh(WITHOUT_ENDPOINT) as mesh,
        slotmesh.connect(mesh.routers[0].address) as client,
    ):
        await apply(mesh, gated)
        waiting = asyncio.create_task(names(client, 10, **options))

        async def all_wait() -> bool:
            metrics = Metrics(await mesh.scrape(mesh.routers[0]))
            return metrics.total("slotmesh_router_queued", backend="gated") == 10

        await until(all_wait)
        assert not waiting.done()
        await asyncio.to_thread(gate.write_bytes, b"go")
        assert await waiting == {"gated": 10}


@pytest.mark.asyncio
async def test_a_backend_of_no_replicas_serves_nothing() -> None:
    async with process_mesh(WITHOUT_ENDPOINT) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        none = Backend(name="b", handler=GOOD, user_config={"name": "b"}, num_replicas=0)
        endpoint = Endpoint(name="e", traffic=TrafficPolicy(weights={"b": 1.0}))
        await apply(mesh, Mesh(backends=(none,), endpoints=(endpoint,)))

        async def is_refused() -> bool:
            try:
                await names(client, 1)
            except slotmesh.BackendUnavailable as error:
                return "none should run" in str(error)
            return False

        await until(is_refused)
