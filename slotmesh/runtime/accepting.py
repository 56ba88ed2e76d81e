"""A server of `grpc.aio` that takes in several rpcs at a time.

Purpose: `grpc.aio` asks its core for one rpc, and for the next one some turns of the event loop after that has come.
With many rpcs that is what they wait for, and half of what they cost: a flood of them, cancelled ones too, makes all
others wait. Here some are asked for ahead (`accept_ahead`), and those of the methods in `MANY` do not pass through the
loop of `grpc.aio` at all: they are taken in as they come, and begin in turn (`fair_starts`).
Invariants: what comes is handed to `grpc.aio` as its own loop does it. This is done by its inside, which may change:
where it is not as expected, its own loop takes in everything, and nothing but time is lost. Nothing is asked for from a
server that stops: its core may be gone.
Owner: the server, on its event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeAlias

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from slotmesh.errors import Failure, Reason
from slotmesh.runtime.aborts import released
from slotmesh.runtime.accept_ahead import AcceptAhead
from slotmesh.runtime.channels import MAX_PENDING, Options
from slotmesh.runtime.completion_wakes import keep_wakes_few
from slotmesh.runtime.fair_starts import FairStarts
from slotmesh.status import abort
from slotmesh.telemetry.log import get_logger

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its stubs only
_Taken: TypeAlias = tuple[str, Handler, Any]
"""An rpc, with the path and the handler of its method."""

MANY: Final = frozenset(
    {
        "slotmesh.v1.RouterService/Call",
        "slotmesh.v1.RouterService/CallJson",
        "slotmesh.v1.RouterService/StreamCalls",
        "slotmesh.v1.SlotService/ReserveSlot",
        "slotmesh.v1.SlotService/Dispatch",
        "slotmesh.v1.SlotService/ReleaseSlot",
        "inference.GRPCInferenceService/ModelInfer",
    }
)
"""Full names. Each one costs all rpcs of other methods a microsecond, in `grpc.aio`'s own loop."""
AT_ONCE: Final = 128
"""So many rpcs of each of these are taken in in one turn of the event loop."""
_HANDLING: Final = {
    (False, False): "_handle_unary_unary_rpc",
    (False, True): "_handle_unary_stream_rpc",
    (True, False): "_handle_stream_unary_rpc",
    (True, True): "_handle_stream_stream_rpc",
}
"""What `grpc.aio` handles an rpc by, whose request and response are streams or not."""
_EXPECTED: Final = {
    **dict.fromkeys(_HANDLING.values(), ("method_handler", "rpc_state", "loop")),
    "_schedule_rpc_coro": ("rpc_coro", "rpc_state", "loop", "method_name"),
}
"""What is used of `grpc.aio`'s inside, and what it takes."""
_CONTEXT: Final = "_ServicerContext"
_MAY_BE_DERIVED_FROM: Final = 1 << 10
"""Py_TPFLAGS_BASETYPE."""
_OF_CORES: Final = ("_make_request_call_future", "_request_call", "_request_registered_call", "is_running", "shutdown")

_MAKING: Final = threading.Lock()
"""Servers are made one after another, whatever threads their loops run in."""

_log = get_logger(__name__)


def accepting_server(options: Options) -> grpc.aio.Server:
    """A server, as `grpc.aio.server` makes one."""
    keep_wakes_few()
    if (problem := _PROBLEM or _problem()) is not None:
        _log.info("rpcs are taken in by grpc.aio itself, one at a time", why=problem, grpc=grpc.__version__)
        return grpc.aio.server(options=options)
    with _MAKING:  # the only way to say which core it shall have
        own, cygrpc.AioServer = cygrpc.AioServer, _AcceptingCore
        try:
            return grpc.aio.server(options=options)
        finally:
            cygrpc.AioServer = own


def serve_many(server: grpc.aio.Server, name: str, handlers: Mapping[str, Handler]) -> None:
    """Before its start: these are the handlers that are registered at it one by one, by `/SERVICE/METHOD`.

    `name`: of the server, for those whom it refuses while it stops.
    """
    core: Any = getattr(server, "_server", None)
    if hasattr(core, "serve_many"):
        core.serve_many(name, handlers)


def _refusing(name: str) -> Handler:
    """Of rpcs of whatever method."""

    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, Failure(reason=Reason.DRAINING, message=f"the {name} stops"))

    return released(grpc.stream_stream_rpc_method_handler(refuse))


def _problem() -> str | None:
    """What is not as expected of `grpc.aio`; None where everything is."""
    core = getattr(cygrpc, "AioServer", None)
    if missing := [name for name in _OF_CORES if not callable(getattr(core, name, None))]:
        return f"its servers have no {missing[0]}"
    if not isinstance(getattr(cygrpc, "_RequestCallError", None), type):
        return "it has no _RequestCallError"
    if not callable(getattr(getattr(cygrpc, _CONTEXT, None), "peer", None)):
        return f"its {_CONTEXT} knows no peer"
    if not (isinstance(core, type) and core.__flags__ & _MAY_BE_DERIVED_FROM):
        return "its servers are final"
    for name, takes in _EXPECTED.items():
        try:
            found = tuple(inspect.signature(getattr(cygrpc, name)).parameters)
        except (AttributeError, TypeError, ValueError):
            return f"it has no {name}"
        if found != takes:
            return f"its {name} takes {', '.join(found)}"
    return None


_PROBLEM: Final = _problem()
"""With what there is when this module is loaded: it derives from that."""
_CORE: Any = cygrpc.AioServer if _PROBLEM is None else object


class _AcceptingCore(_CORE):  # type: ignore[misc]  # it has no stubs
    """What `grpc.aio` calls a server, within."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._running_loop = asyncio.get_running_loop()
        self._handlers: dict[bytes, Handler] = {}
        self._refusing = _refusing("server")
        self._ahead = AcceptAhead(self._next_rpc, self._refuse)
        self._failures: dict[bytes, asyncio.Future[None]] = {}
        """What the loop of `grpc.aio` waits for in place of rpcs of these methods: it ends by their exceptions."""
        self._starts = FairStarts(self._start, self._peer_of, MAX_PENDING)
        self._tasks: set[asyncio.Task[Any]] = set()

    def serve_many(self, name: str, handlers: Mapping[str, Handler]) -> None:
        self._handlers = {path.encode(): handler for path, handler in handlers.items()}
        self._refusing = _refusing(name)

    def _make_request_call_future(self, method: bytes | None) -> Any:
        """Called by grpc's own loop: the next rpc of this registered method, or of any that is not."""
        if method is None:
            return self._ahead.next()
        if (handler := self._handlers.get(method)) is None:
            return super()._make_request_call_future(method)
        self._failures[method] = self._running_loop.create_future()
        for _ in range(AT_ONCE):
            self._hold(self._accept(method, handler))
        return self._failures[method]

    async def shutdown(self, grace: float | None) -> None:
        self._ahead.close()
        self._starts.begin_by(lambda taken: self._refuse(taken[2]))
        await super().shutdown(grace)

    async def _accept(self, method: bytes, handler: Handler) -> None:
        path = method.decode()
        while self.is_running():
            try:
                rpc = await self._request_registered_call(method)
            except cygrpc._RequestCallError:
                continue  # the server stops, else there is a next one
            except Exception as error:  # noqa: BLE001 - what its own loop would raise
                if not (failure := self._failures[method]).done():
                    failure.set_exception(error)
                return
            self._starts.add((path, handler, rpc))  # what it lets go gRPC ends, with CANCELLED
            del rpc  # it would be kept until the next one of the method comes to this place

    async def _next_rpc(self) -> Any:
        if not self.is_running():
            raise cygrpc._RequestCallError
        return await self._request_call()

    def _refuse(self, rpc: Any) -> None:
        self._start(("", self._refusing, rpc))

    def _peer_of(self, taken: _Taken) -> str:
        context = cygrpc._ServicerContext(taken[2], None, None, self._running_loop)
        peer: str = context.peer()
        return peer

    def _start(self, taken: _Taken) -> None:
        path, handler, rpc = taken
        loop = self._running_loop
        handle = getattr(cygrpc, _HANDLING[handler.request_streaming, handler.response_streaming])
        self._hold(cygrpc._schedule_rpc_coro(handle(handler, rpc, loop), rpc, loop, path))

    def _hold(self, work: Coroutine[Any, Any, Any]) -> None:
        """A loop keeps no task from being collected."""
        task = self._running_loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
