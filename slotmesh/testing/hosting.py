"""One replica of a handler in this process, with the real client's endpoint for it, without sockets.

Purpose: fast tests of all that a replica does with a call: arguments are encoded, validated and decoded, calls are
batched, permits are awaited, and failures are those of a mesh.
Invariants: the handler is constructed as in a replica, and drained at the end of the block; exceptions of its
constructor are raised unchanged.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, NoReturn, cast

from replica_service.app import ReplicaApp
from replica_service.config import ReplicaSettings
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.described_endpoints import DescribedEndpoints
from slotmesh.client.endpoint import Endpoint
from slotmesh.client.routers import Routers
from slotmesh.client.slots.client import SlotClient
from slotmesh.client.stream.call_stream import CallStream
from slotmesh.runtime.exits import CannotStart
from slotmesh.server.rpc_gate import Edge
from slotmesh.spec import model
from slotmesh.telemetry.process_times import RpcTimes
from slotmesh.testing.backends import Backend, Handler, as_backend
from slotmesh.testing.backends import kept as batch_settings_kept
from slotmesh.testing.launcher import instance_of
from slotmesh.testing.router_stand_in import WINDOW_CALLS, ClientEnd, ReplicaEnd, RouterStandIn

_HERE: Final = "in-process:1"
_NEEDS_ROUTER: Final = "there is no router here, and so neither slots nor unary rpcs; slotmesh.testing.mesh has all"
_CLOSE_GRACE_S: Final = 5.0
"""How long leaving the block waits for unanswered calls."""


class HostedHandler(Endpoint):
    """The endpoint of one handler: called as any other, `await digits.classify(pixels)`.

    Methods with a name of this class (`instance`, `options`, …) are called by `digits.method("instance")`.
    """

    def __init__(self, stream: CallStream, replica: _Replica, name: str) -> None:
        routers = _NoRouters([_HERE])
        super().__init__(stream, ViewOptions(), SlotClient(routers, 1.0), DescribedEndpoints(routers))
        self._replica = replica
        self._name = name

    @property
    def instance(self) -> Any:
        """The constructed object, or the function."""
        return self._replica.instance

    @property
    def figures(self) -> Mapping[str, float]:
        """What the handler has reported of itself by `slotmesh.report`."""
        return self._replica.app.replica.handler_state.figures

    def __repr__(self) -> str:
        return f"<slotmesh handler {self._name} under test>"


@asynccontextmanager
async def handler(target: Handler | Backend, /, **user_config: Any) -> AsyncIterator[HostedHandler]:
    """Runs a handler in this process: `async with slotmesh.testing.handler(Digits, model="centroid") as digits`.

    The result is an endpoint, as from `mesh.endpoint`: calls, `map`, `stream`, `ordered`, `options`. The handler runs
    on
    the test's own event loop (`def` methods in threads), so that both may share objects of a loop.

    Args:
        target: the class or function, local ones too; or a `Backend` with it, for settings.
        **user_config: arguments of the constructor.

    Raises:
        TypeError: it is no handler.
        Exception: any exception of its constructor.
    """
    backend = as_backend(target, user_config)
    replica = _Replica(backend)
    with batch_settings_kept(backend.handler):
        await replica.start()
        stream = CallStream(backend.handler.__name__, _DirectRouters(replica), 1.0)
        grace_s = 0.0
        try:
            yield HostedHandler(stream, replica, backend.handler.__qualname__)
            grace_s = _CLOSE_GRACE_S
        finally:
            try:
                await stream.aclose(grace_s)
            finally:
                await replica.stop()


class _Replica:
    """A replica without a server, and its task."""

    def __init__(self, backend: Backend) -> None:
        settings = ReplicaSettings(
            handler=backend.path,
            backend=backend.handler.__name__[:63],
            metrics_port=-1,
            graceful_timeout=timedelta(seconds=backend.graceful_timeout_s),
        )
        self.app = ReplicaApp(settings, server=_NoServer(), load=lambda _path: backend.handler)
        self._backend = backend
        self._streams: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[int] | None = None

    @property
    def instance(self) -> Any:
        """The constructed handler."""
        return instance_of(self.app)

    async def start(self) -> None:
        """Constructs the handler. Raises the constructor's exceptions."""
        replica = self.app.replica
        changed = asyncio.Event()
        replica.on_change = changed.set
        replica.configure(self._configuration())
        self._task = asyncio.create_task(self.app.run(), name="replica under test")
        is_ready = asyncio.ensure_future(changed.wait())
        try:
            await asyncio.wait((self._task, is_ready), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            is_ready.cancel()
        if replica.engine is None:
            try:
                await self._task
            except CannotStart as error:
                raise error.__cause__ or error from None

    def _configuration(self) -> model.Backend:
        """The backend's settings, as a controller would send them."""
        # Calls that a router would queue wait at the replica.
        return dataclasses.replace(self._backend.to_spec(self._backend.handler.__name__), prefetch=WINDOW_CALLS)

    async def stop(self) -> None:
        """Drains within the backend's grace period; returns when nothing runs any more."""
        self.app.replica.stop_asked.set()
        if self._task is not None:
            await self._task
        await asyncio.gather(*self._streams)

    def open(self) -> RouterStandIn:
        """Opens a stream of calls to the replica."""
        identity = self.app.identity
        router = RouterStandIn("test", identity.replica_id, identity.incarnation)
        task = asyncio.get_running_loop().create_task(self._serve(router), name="stream under test")
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        return router

    async def _serve(self, router: RouterStandIn) -> None:
        try:
            await self.app.servicer.Execute(None, cast("Any", ReplicaEnd(router)))
        finally:
            router.ended()


class _NoRouters(Routers):
    """An empty router set, for a constructor that requires one."""

    def is_connected(self, address: str) -> NoReturn:
        del address
        raise RuntimeError(_NEEDS_ROUTER)


class _DirectRouters(_NoRouters):
    """A router set with one stand-in."""

    def __init__(self, replica: _Replica) -> None:
        super().__init__([_HERE])
        self._replica = replica

    def stub(self, address: str) -> Any:
        del address  # there is only one
        return _Stub(self._replica)


class _Stub:
    """The part of a router's stub that the client uses."""

    def __init__(self, replica: _Replica) -> None:
        self._replica = replica

    def StreamCalls(self, *, wait_for_ready: bool) -> ClientEnd:  # noqa: N802 - an rpc's name
        del wait_for_ready  # it is ready
        return ClientEnd(self._replica.open())

    def __getattr__(self, rpc: str) -> NoReturn:
        raise RuntimeError(_NEEDS_ROUTER)


class _NoServer:
    """Implements `Server` for a replica that has no address."""

    address = _HERE
    serving = True

    def __init__(self) -> None:
        self.rpc_times = RpcTimes()
        self.edge = Edge(self.rpc_times)

    def add(self, register: Callable[[Any, Any], None], servicer: Any) -> None:
        """Ignored: the servicer is called directly."""

    async def start(self) -> None:
        """Does nothing."""

    def set_serving(self, serving: bool = True) -> None:
        """Ignored: there are no health checks."""

    async def stop(self, grace_s: float = 0.0) -> None:
        """Does nothing."""
