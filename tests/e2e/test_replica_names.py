"""Replicas with names of one directory: after a surge, too, a process that follows a crashed one has its name."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

import slotmesh
from slotmesh.cli.operator import Operator
from slotmesh.runtime.parent import ParentPipe
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from tests.support.controllers import eventually
from tests.support.faults import Service, Surroundings

HANDLER: Final = "tests.e2e.traffic_handlers:Version"
SPEC: Final = Mesh(
    backends=(Backend(name="v1", handler=HANDLER, user_config={"name": "v1"}),),
    endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0})),),
)
KEYS: Final = 64


@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_after_a_surge_a_crashed_replica_is_followed_by_one_of_its_name_and_its_keys_go_on(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        surroundings = Surroundings(stack.enter_context(ParentPipe()), {**os.environ}, tmp_path / "log")
        stack.callback(surroundings.close)

        async def started(name: str, module: str, *flags: str) -> Service:
            service = Service(name, module, flags, surroundings)
            stack.push_async_callback(service.stop)
            await service.start()
            return service

        controller = await started("controller", "controller_service", "--launcher=external")
        at = f"--controller={controller.address}"
        router = await started("router", "router_service", at)
        operator = await stack.enter_async_context(Operator.at(controller.address))
        await operator.apply(SPEC)

        async def replica() -> Service:
            flags = (f"--handler={HANDLER}", "--backend=v1", f"--replica-names={tmp_path / 'names'}")
            return await started("replica", "replica_service", at, *flags)

        async def are_ready(*names: str) -> None:
            async def they_are() -> bool:
                members = await operator.members()
                linked = [set(it.linked_replica_ids) for it in members.routers]
                return members.ready() == set(names) and all(it == set(names) for it in linked)

            await eventually(they_are, what=f"{names} are ready", timeout=60)

        old = [await replica() for _ in range(2)]
        await are_ready("v1-0", "v1-1")
        crashing, _ = [await replica() for _ in range(2)]
        await are_ready("v1-0", "v1-1", "v1-2", "v1-3")
        for it in old:
            await it.stop()
        await are_ready("v1-2", "v1-3")
        assert [(tmp_path / "names" / f"v1-{number}.lock").stat().st_mtime for number in range(2)] == [0, 0]
        client = await stack.enter_async_context(slotmesh.connect(router.address))
        endpoint = client.endpoint("e").options(idempotent=True, timeout=60)
        for key in range(KEYS):
            await endpoint.ordered(f"key{key}").method("name")(1)
        await crashing.kill()
        await replica()
        await are_ready("v1-2", "v1-3")
        for key in range(KEYS):
            assert await endpoint.ordered(f"key{key}").method("name")(1) == "v1"
        await replica()
        await are_ready("v1-0", "v1-2", "v1-3")
