"""A server of `grpc.aio` that accepts several rpcs at a time, and begins them in turn, by connection.

Purpose: `grpc.aio` requests one rpc from its core, and the next one only some turns of the event loop after the first
has arrived. With many rpcs they mostly wait for that, and it is half of their cost: a flood of rpcs, even of cancelled
ones, delays all others. Here some rpcs are requested ahead (`AcceptAhead`), and those of the methods in `MANY` bypass
the loop of `grpc.aio`: they are accepted as they arrive, and begin in turn (`FairStarts`).
Invariants: rpcs are handed to `grpc.aio` as its own loop does it. This uses private parts of `grpc.aio`: if they are
not as expected, its own loop accepts all rpcs, and only speed is lost. No rpc is requested from a server that stops:
its core may be freed.
Owner: the server, on its event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from slotmesh.errors import Failure, Reason
from slotmesh.grpc_internals import VARIABLE, is_off
from slotmesh.grpc_internals.aborts import released
from slotmesh.grpc_internals.completion_wakes import keep_wakes_few
from slotmesh.logs import get_logger
from slotmesh.status import abort
from slotmesh.streams.limits import MAX_PENDING

RpcT = TypeVar("RpcT")

IN_A_TURN: Final = 8
"""The number of rpcs that begin in one turn of the event loop: about a millisecond of work."""


class FairStarts(Generic[RpcT]):
    """Begins the accepted rpcs of one server: round-robin over their connections, a few in each turn of the event loop.

    Purpose: until a server accepts them, all rpcs stand in one queue of gRPC's core, a client's single call behind ten
    thousand of another, so they are accepted as fast as they arrive. Beginning all of them immediately would make for
    long turns of the event loop. A connection waits for one rpc of each other connection, however many these have.
    Invariants: the rpcs of one connection begin in their order of arrival. With few rpcs, each begins immediately. The
    queue is bounded, and even when it is full one rpc of each connection may wait: no flood keeps other clients out.
    """

    def __init__(self, start: Callable[[RpcT], None], peer_of: Callable[[RpcT], str], most: int) -> None:
        """`start` begins an rpc and raises nothing; `peer_of` names its connection. `most`: see `add`."""
        self._start = start
        self._peer_of = peer_of
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._waiting: OrderedDict[str, deque[RpcT]] = OrderedDict()
        """By connection, each with at least one rpc; the connection whose turn is next is first."""
        self._count = 0
        self._left = IN_A_TURN
        """How many may still begin in this turn."""
        self._has_next_turn = False

    def __len__(self) -> int:
        return self._count

    def add(self, rpc: RpcT) -> None:
        """Begins the rpc now if no other waits and few have begun in this turn; otherwise queues it.

        Drops it, so that it never begins, if `most` wait and one of its connection is among them.
        """
        if not self._has_next_turn:
            self._has_next_turn = True
            self._loop.call_soon(self._turn)
        if self._left:  # then none waits
            self._left -= 1
            self._start(rpc)
            return
        peer = self._peer_of(rpc)
        if self._count >= self._most and peer in self._waiting:
            return
        self._waiting.setdefault(peer, deque()).append(rpc)
        self._count += 1

    def begin_by(self, start: Callable[[RpcT], None]) -> None:
        """Replaces `start` for all rpcs that have not begun."""
        self._start = start

    def _turn(self) -> None:
        for begun in range(IN_A_TURN):
            if not self._waiting:
                self._left = IN_A_TURN - begun
                break
            peer, rpcs = self._waiting.popitem(last=False)
            rpc = rpcs.popleft()
            if rpcs:
                self._waiting[peer] = rpcs
            self._count -= 1
            self._start(rpc)
        else:
            self._left = 0
        # Another turn follows as long as one is used: the one after that gives what has begun in it back.
        self._has_next_turn = self._left < IN_A_TURN
        if self._has_next_turn:
            self._loop.call_soon(self._turn)


MOST_AHEAD: Final = 8
"""More are not accepted faster; they would all begin in the same turn of the event loop, which makes it long."""


class AcceptAhead:
    """The rpcs of one server that have arrived and are not taken yet; some are requested before they are wanted.

    Invariants: there are at most `MOST_AHEAD` of them, requested ones included. Each is taken once or refused once;
    after `close` all are refused.
    """

    def __init__(self, request: Callable[[], Awaitable[Any]], refuse: Callable[[Any], None]) -> None:
        """`request` returns the next rpc, or raises if there are no more. `refuse` ends an rpc that is not taken."""
        self._request = request
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._come: deque[Any] = deque()
        self._taker: asyncio.Future[Any] | None = None
        self._asked = 0
        self._requests: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def next(self) -> asyncio.Future[Any]:
        """The next rpc; not before the one before it was taken."""
        taker: asyncio.Future[Any] = self._loop.create_future()
        if self._come:
            taker.set_result(self._come.popleft())
        else:
            self._taker = taker
        while self._asked + len(self._come) < (1 if self._is_closed else MOST_AHEAD):
            self._asked += 1
            request = self._loop.create_task(self._ask())
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)
        return taker

    def close(self) -> None:
        """Refuses the rpcs that have arrived, and all later ones."""
        self._is_closed = True
        while self._come:
            self._refuse(self._come.popleft())

    async def _ask(self) -> None:
        try:
            rpc = await self._request()
            while self._is_closed:  # until the server has no more: the taker may have no other request
                self._refuse(rpc)
                rpc = await self._request()
        except Exception as error:  # noqa: BLE001 - passed on to the taker
            if (taker := self._taken_by()) is not None:
                taker.set_exception(error)
            return
        finally:
            self._asked -= 1
        if (taker := self._taken_by()) is not None:
            taker.set_result(rpc)
        else:
            self._come.append(rpc)

    def _taken_by(self) -> asyncio.Future[Any] | None:
        """The future that waits for the next rpc, which is then no longer stored; None if there is none."""
        taker, self._taker = self._taker, None
        return None if taker is None or taker.done() else taker


Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its stubs only
_Taken: TypeAlias = tuple[str, Handler, Any]
"""An rpc, with the path and the handler of its method."""

MANY: Final = frozenset(
    {
        "slotmesh.v1.RouterService/Call",
        "slotmesh.v1.RouterService/StreamCalls",
        "slotmesh.v1.SlotService/ReserveSlot",
        "slotmesh.v1.SlotService/Dispatch",
        "slotmesh.v1.SlotService/ReleaseSlot",
        "inference.GRPCInferenceService/ModelInfer",
    }
)
"""Full names. Each one costs all rpcs of other methods a microsecond, in `grpc.aio`'s own loop."""
FIRST_OF_METHOD: Final = 8
MOST_OF_METHOD: Final = 128
"""The number of rpcs of each of these methods that are requested at a time: first few, and one more with each rpc."""
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
"""The private functions of `grpc.aio` that are used, with their parameters."""
_CONTEXT: Final = "_ServicerContext"
_MAY_BE_DERIVED_FROM: Final = 1 << 10
"""Py_TPFLAGS_BASETYPE."""
_OF_CORES: Final = ("_make_request_call_future", "_request_call", "_request_registered_call", "is_running", "shutdown")

_MAKING: Final = threading.Lock()
"""Servers are made one after another, whatever threads their loops run in."""

_log = get_logger(__name__)


def accepting_server(options: Sequence[tuple[str, int]]) -> grpc.aio.Server:
    """Creates a server, as `grpc.aio.server` does."""
    keep_wakes_few()
    if (problem := f"{VARIABLE} is set" if is_off() else _PROBLEM or _problem()) is not None:
        _log.info("rpcs are taken in by grpc.aio itself, one at a time", why=problem, grpc=grpc.__version__)
        return grpc.aio.server(options=options)
    with _MAKING:  # the only way to choose its core
        own, cygrpc.AioServer = cygrpc.AioServer, _AcceptingCore
        try:
            return grpc.aio.server(options=options)
        finally:
            cygrpc.AioServer = own


def serve_many(server: grpc.aio.Server, name: str, handlers: Mapping[str, Handler]) -> None:
    """Passes the handlers that are registered one by one, by `/SERVICE/METHOD`. Call it before the server starts.

    `name`: of the server, for the message to clients that it refuses while it stops.
    """
    core: Any = getattr(server, "_server", None)
    if hasattr(core, "serve_many"):
        core.serve_many(name, handlers)


def _refusing(name: str) -> Handler:
    """A handler that refuses rpcs of any method."""

    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, Failure(reason=Reason.DRAINING, message=f"the {name} stops"))

    return released(grpc.stream_stream_rpc_method_handler(refuse))


def _problem() -> str | None:
    """Describes how `grpc.aio` differs from what is expected; None if it does not."""
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
"""For the `AioServer` that exists when this module is loaded: `_AcceptingCore` derives from it."""
_CORE: Any = cygrpc.AioServer if _PROBLEM is None else object


class _AcceptingCore(_CORE):  # type: ignore[misc]  # it has no stubs
    """The internal server object of `grpc.aio`."""

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
        self._requested: Counter[bytes] = Counter()
        """The number of rpcs that are requested at a time, by method."""

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
        for _ in range(FIRST_OF_METHOD):
            self._request_more(method, handler)
        return self._failures[method]

    def _request_more(self, method: bytes, handler: Handler) -> None:
        self._requested[method] += 1
        self._hold(self._accept(method, handler))

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
            if self._requested[method] < MOST_OF_METHOD:
                self._request_more(method, handler)

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
        """Runs a task, and keeps a reference to it: an event loop only has weak ones."""
        task = self._running_loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
