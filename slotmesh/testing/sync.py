"""A mesh under test for tests without asyncio, in a separate thread.

Invariants: the thread ends with the block; exceptions of the mesh are raised in the thread of the test. Handlers run in
the mesh's thread, or in their own threads, never in that of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from slotmesh.client.mesh import connect
from slotmesh.client.sync.mesh import SyncMesh
from slotmesh.runtime.main import run_unwound
from slotmesh.testing.backends import Backend, Handler
from slotmesh.testing.meshes import (
    CLOSE_GRACE_S,
    CONNECT_TIMEOUT_S,
    START_TIMEOUT_S,
    GeneratedModules,
    RunningMesh,
    Traffic,
    mesh,
)

ResultT = TypeVar("ResultT")


class SyncRunningMesh(SyncMesh):
    """The real client of a mesh under test, with methods to change that mesh, which are those of `RunningMesh`."""

    def __init__(self, running: RunningMesh, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            connect(running.router_addresses, connect_timeout=CONNECT_TIMEOUT_S, close_grace=CLOSE_GRACE_S)
        )
        self._running = running
        self._loop = loop

    @property
    def controller_address(self) -> str:
        """`HOST:PORT`."""
        return self._running.controller_address

    @property
    def router_addresses(self) -> list[str]:
        """`HOST:PORT` of each running router."""
        return self._running.router_addresses

    def replica_ids(self, backend: str) -> list[str]:
        """The ready replicas of a backend."""
        return self._running.replica_ids(backend)

    def instance(self, replica_id: str) -> Any:
        """The handler of a replica. Calls may run in other threads at the same time."""
        return self._running.instance(replica_id)

    def instances(self, backend: str) -> list[Any]:
        """The handlers of a backend's replicas."""
        return self._running.instances(backend)

    def apply(
        self,
        backends: Mapping[str, Handler | Backend] | None = None,
        traffic: Traffic | None = None,
        *,
        grpc_services: GeneratedModules | None = None,
        timeout: float = START_TIMEOUT_S,
    ) -> None:
        """Changes the mesh, and returns when it is ready again."""
        self._do(self._running.apply(backends, traffic, grpc_services=grpc_services, timeout=timeout))

    def wait_ready(self, timeout: float = START_TIMEOUT_S) -> None:
        """Returns when the mesh is ready."""
        self._do(self._running.wait_ready(timeout))

    def drain_replica(self, replica_id: str) -> None:
        """Stops a replica; returns when it has ended."""
        self._do(self._running.drain_replica(replica_id))

    def kill_replica(self, replica_id: str) -> None:
        """Ends a replica immediately."""
        self._do(self._running.kill_replica(replica_id))

    def kill_router(self, address: str) -> None:
        """Ends a router immediately."""
        self._do(self._running.kill_router(address))

    def _do(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextmanager
def sync_mesh(
    backends: Mapping[str, Handler | Backend],
    *,
    traffic: Traffic | None = None,
    grpc_services: GeneratedModules | None = None,
    routers: int = 1,
    balancers: Sequence[str] = (),
    start_timeout: float = START_TIMEOUT_S,
) -> Iterator[SyncRunningMesh]:
    """As `slotmesh.testing.mesh`, without asyncio: `with slotmesh.testing.sync_mesh({"digits": Digits}) as mesh`.

    The result is a client, as from `slotmesh.connect_sync`.
    """
    begun: Future[tuple[RunningMesh, asyncio.AbstractEventLoop, Callable[[], object]]] = Future()

    async def live() -> None:
        async with mesh(
            backends,
            traffic=traffic,
            grpc_services=grpc_services,
            routers=routers,
            balancers=balancers,
            start_timeout=start_timeout,
        ) as running:
            over = asyncio.Event()
            loop = asyncio.get_running_loop()
            begun.set_result((running, loop, lambda: loop.call_soon_threadsafe(over.set)))
            await over.wait()

    ended: Future[None] = Future()

    def run() -> None:
        try:
            with asyncio.Runner() as runner:
                run_unwound(runner, live())
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            (ended if begun.done() else begun).set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=run, name="mesh under test", daemon=True)
    thread.start()
    try:
        running, loop, end = begun.result()
    except BaseException:
        thread.join()
        raise
    try:
        client = SyncRunningMesh(running, loop)
        with client:
            yield client
    finally:
        with contextlib.suppress(RuntimeError):  # the loop has ended before; its error is raised below
            end()
        thread.join()
        ended.result()
