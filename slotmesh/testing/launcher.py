"""A launcher that runs replicas as tasks in the test's own process.

Purpose: handlers are passed as objects, and tests can inspect their instances; a replica is killed without a signal.
Invariants: those of every launcher (`controller_service.shell.launchers.protocol`): each started replica ends in one
`Exit`, after its last task has ended. A killed replica sends nothing any more: its connections are cut before its tasks
are cancelled.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from controller_service.shell.launchers.protocol import Exit, Instance, Launcher, LaunchOrder, OnExit
from replica_service.app import ReplicaApp
from replica_service.config import ReplicaSettings
from slotmesh.runtime.exits import CannotStart
from slotmesh.testing.backends import Backend, Handler

CLOSE_GRACE_S = 5.0
"""Grace period of replicas that were not requested to stop before."""

RESUME_TTL_S = 1.0
"""How long results are kept for reconnecting clients. A client's acknowledgements to a killed router never reach the
replica, whose drain would wait for them."""


class HandlerNames:
    """Names for handlers, which specifications and replicas use."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def name_of(self, backend: Backend) -> str:
        """The name of a backend's handler, unique per object."""
        name, number = backend.path, 1
        while self._handlers.setdefault(name, backend.handler) is not backend.handler:
            number += 1
            name = f"{backend.path}_{number}"
        return name

    def load(self, name: str) -> Handler:
        """The class or function of that name."""
        return self._handlers[name]


class InProcessLauncher(Launcher):
    """Starts replicas as tasks."""

    launches = True

    def __init__(self, controller: str, on_exit: OnExit, handlers: HandlerNames, mint_id: Callable[[str], str]) -> None:
        """`mint_id` returns a new replica id for a backend."""
        self._mint_id = mint_id
        self._controller = controller
        self._on_exit = on_exit
        self._handlers = handlers
        self._running: dict[str, _Replica] = {}
        self.first_failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """The first exception of a handler's constructor."""
        self.stopped_after: list[Callable[[], Awaitable[None]]] = []
        """Stop the routers, which end after the replicas, whose calls they finish, and before the controller."""

    def app(self, replica_id: str) -> ReplicaApp:
        """A running replica. Raises KeyError, naming the running ones."""
        try:
            return self._running[replica_id].app
        except KeyError:
            known = ", ".join(sorted(self._running)) or "none"
            raise KeyError(f"no replica {replica_id!r} runs; there are {known}") from None

    async def start(self, order: LaunchOrder, count: int) -> None:
        present = sum(it.instance.order == order and it.killing is None for it in self._running.values())
        for _ in range(count - present):
            self._start(order)

    def _start(self, order: LaunchOrder) -> None:
        replica_id = self._mint_id(order.backend)
        settings = ReplicaSettings(
            handler=order.handler,
            backend=order.backend,
            replica_id=replica_id,
            controller=self._controller,
            port=0,
            metrics_port=-1,
            graceful_timeout=timedelta(seconds=CLOSE_GRACE_S),
            resume_ttl=timedelta(seconds=RESUME_TTL_S),
        )
        instance = Instance(replica_id=replica_id, order=order, pid=os.getpid())
        replica = _Replica(instance, ReplicaApp(settings, load=self._handlers.load))
        self._running[replica_id] = replica
        replica.task = asyncio.create_task(self._live(replica_id, replica), name=f"replica {replica_id}")

    def observe(self) -> Sequence[Instance]:
        return [replica.instance for replica in self._running.values()]

    def stop(self, replica_id: str, *, grace_s: float) -> None:
        replica = self._running.get(replica_id)
        if replica is None or replica.killing is not None:
            return
        replica.app.replica.stop_asked.set()
        replica.killing = asyncio.get_running_loop().call_later(grace_s, replica.cancel)

    def kill(self, replica_id: str) -> None:
        if replica := self._running.get(replica_id):
            replica.cancel()

    async def leave(self) -> None:
        """Does nothing: no process outlives the test."""
        await self.close()

    async def drain(self, replica_id: str) -> None:
        """Stops a replica, and waits for its end. Raises KeyError."""
        self.app(replica_id).replica.stop_asked.set()
        await asyncio.wait([self._running[replica_id].task])

    async def cut_off(self, replica_id: str) -> None:
        """Cuts the replica's connections, and ends it immediately. Raises KeyError."""
        await self.app(replica_id).server.stop()
        replica = self._running[replica_id]
        replica.cancel()
        await asyncio.wait([replica.task])

    async def close(self) -> None:
        tasks = [replica.task for replica in self._running.values()]
        for replica_id in [*self._running]:
            self.stop(replica_id, grace_s=CLOSE_GRACE_S)
        await asyncio.gather(*tasks)
        self.first_failure.cancel()
        # What a router has failed with is raised when the mesh stops it once more.
        await asyncio.gather(*(stop() for stop in self.stopped_after), return_exceptions=True)

    async def _live(self, replica_id: str, replica: _Replica) -> None:
        how, failed = "ended with status 0", False
        try:
            status = await replica.run()
            if status:
                how, failed = f"ended with status {status}", True
        except asyncio.CancelledError:
            how, failed = "killed", True
        except CannotStart as error:
            how, failed = "ended with status 1", True
            self._failed(error.__cause__ or error)
        except Exception as error:  # noqa: BLE001 - a process would end, and say so
            how, failed = f"failed: {error!r}", True
            self._failed(error)
        finally:
            if replica.killing is not None:
                replica.killing.cancel()
            del self._running[replica_id]
            self._on_exit(Exit(replica_id=replica_id, how=how, failed=failed))

    def _failed(self, error: BaseException) -> None:
        if not self.first_failure.done():
            self.first_failure.set_result(error)


class _Replica:
    """A replica that has not ended."""

    task: asyncio.Task[None]

    def __init__(self, instance: Instance, app: ReplicaApp) -> None:
        self.instance = instance
        self.app = app
        self.killing: asyncio.TimerHandle | None = None
        """Set after a request to stop."""
        self._running: asyncio.Task[int] | None = None
        self._is_cancelled = False

    async def run(self) -> int:
        """Raises CancelledError if the task was cancelled."""
        self._running = asyncio.ensure_future(self.app.run())
        if self._is_cancelled:
            self._running.cancel()
        return await self._running

    def cancel(self) -> None:
        """Ends it immediately."""
        self._is_cancelled = True
        if self._running is not None:
            self._running.cancel()


def instance_of(app: ReplicaApp) -> Any:
    """The handler that a replica has constructed.

    Raises:
        RuntimeError: it has not.
    """
    if app.replica.engine is None:
        raise RuntimeError("the handler was not constructed")
    return app.replica.handler
