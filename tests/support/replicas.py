"""A real replica on the test's event loop, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from replica_service.app import ReplicaApp
from replica_service.config import ReplicaSettings
from replica_service.shell.engine import Engine
from slotmesh.runtime.clock import Clock
from tests.support.execute_stream import ExecuteStream, execute_stream
from tests.support.wait import wait_until

HANDLERS = "tests.support.replica_handlers"


class RunningReplica:
    """The app, and the task that it runs in."""

    def __init__(self, app: ReplicaApp, task: asyncio.Task[int]) -> None:
        self.app = app
        self.task = task

    @property
    def address(self) -> str:
        return self.app.server.address

    @property
    def engine(self) -> Engine:
        """Once it is ready."""
        assert self.app.replica.engine is not None
        return self.app.replica.engine

    @property
    def handler(self) -> Any:
        """The constructed handler."""
        (method, *_) = self.engine.methods.values()
        return getattr(method.function, "__self__", method.function)

    def router(self, router_id: str = "router-1", **identity: str) -> AbstractAsyncContextManager[ExecuteStream]:
        """A stream to it; `identity` replaces what the router believes it to be."""
        meant = {
            "replica_id": self.app.identity.replica_id,
            "incarnation": self.app.identity.incarnation,
            **identity,
        }
        return execute_stream(self.address, router_id=router_id, **meant)

    async def stop(self) -> int:
        """Asks it to stop, and returns the exit status."""
        self.app.replica.stop_asked.set()
        async with asyncio.timeout(10):
            return await self.task


@asynccontextmanager
async def running_replica(
    handler: str = f"{HANDLERS}:Handler", *, until_ready: bool = True, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[RunningReplica]:
    """A replica for as long as the block lasts; on its own unless `controller` is given. `clock` tells its time."""
    app = ReplicaApp(ReplicaSettings(handler=handler, port=0, **{"metrics_port": -1, **settings}), clock)
    running = RunningReplica(app, asyncio.create_task(app.run()))
    try:
        if until_ready:
            await wait_until(lambda: app.replica.engine or running.task.done(), what="ready")
        yield running
    finally:
        if not running.task.done():
            await running.stop()
