"""Rpcs of users' own protos that stream, and the services that this router answers: requests and responses are bytes.

Owner: the servicer of own rpcs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from google.protobuf.descriptor import FileDescriptor

from router_service import convert
from router_service.convert.options import metadata_of
from router_service.core.commands import (
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    DeliverTaken,
    DeliverValues,
    Delivery,
)
from router_service.core.routing_table import RoutingTable
from router_service.shell.clients.taken_values import Taking
from router_service.shell.dispatcher import Dispatcher
from slotmesh.calls.result_envelopes import (
    INITIAL,
    MAX_REQUEST_BYTES_AHEAD,
    MAX_REQUESTS_AHEAD,
    MESSAGE,
    BadFrames,
    MetadataPairs,
    frames_in,
    message_alone,
)
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.logs import get_logger
from slotmesh.server.reflection import Descriptors
from slotmesh.spec.descriptor_sets import BadDescriptors, OwnRpc, files_of, rpcs_of
from slotmesh.spec.model import GrpcServices
from slotmesh.streams.chunks import joined
from slotmesh.streams.limits import MAX_INLINE_BYTES

_log = get_logger(__name__)


class _Declared:
    """What the descriptors of one endpoint declare."""

    def __init__(self, services: GrpcServices) -> None:
        """Raises BadDescriptors."""
        self.services = services
        self.rpcs: Mapping[str, Mapping[str, OwnRpc]] = rpcs_of(services)
        self.files: Sequence[FileDescriptor] = files_of(services)
        self.descriptors: Descriptors | None = None
        """Made when reflection asks for the first time."""


class OwnServices:
    """The services of users' own protos in the current routing table, by service and by rpc.

    Purpose: which endpoint has which service, the kind of each rpc, and the descriptors for reflection.
    Invariants: it follows the table: removed services are not found. A table that changes no services costs a look at
    its endpoints, at the next rpc. Invalid descriptors are left out, with a warning.
    """

    def __init__(self, table: Callable[[], RoutingTable]) -> None:
        """`table` is the one in force."""
        self._in_force = table
        self._table: RoutingTable | None = None
        self._declared: dict[str, _Declared] = {}
        """By endpoint."""
        self._endpoints: dict[str, dict[str, OwnRpc]] = {}
        """By rpc, as `package.Service/Method`: the endpoints that have it."""
        self._services: tuple[str, ...] = ()

    def endpoints_of(self, path: str) -> Mapping[str, OwnRpc]:
        """The endpoints that have this rpc, and of which kind it is there. Empty: none has."""
        self._follow()
        return self._endpoints.get(path, _NONE)

    @property
    def names(self) -> Sequence[str]:
        """Full names of all services, sorted."""
        self._follow()
        return self._services

    @property
    def descriptors(self) -> Sequence[Descriptors]:
        """Descriptors for reflection, endpoint by endpoint: endpoints may differ."""
        self._follow()
        found = []
        for declared in self._declared.values():
            if declared.descriptors is None:
                declared.descriptors = Descriptors(declared.files)
            found.append(declared.descriptors)
        return found

    def _follow(self) -> None:
        """Brings all in line with the table in force."""
        table = self._in_force()
        if table is self._table:
            return
        self._table = table
        wanted = {
            name: route.grpc_services for name, route in table.endpoints.items() if route.grpc_services is not None
        }
        if wanted == {name: it.services for name, it in self._declared.items()}:
            return
        declared: dict[str, _Declared] = {}
        for name in sorted(wanted):
            services, before = wanted[name], self._declared.get(name)
            try:
                same = before is not None and before.services == services
                declared[name] = before if same and before is not None else _Declared(services)
            except BadDescriptors as bad:
                _log.warning("services of an endpoint are not answered", endpoint=name, reason=str(bad))
        self._declared = declared
        self._endpoints = {}
        for name, each in declared.items():
            for service, rpcs in each.rpcs.items():
                for method, rpc in rpcs.items():
                    self._endpoints.setdefault(f"{service}/{method}", {})[name] = rpc
        self._services = tuple(sorted({service for each in declared.values() for service in each.rpcs}))


_NONE: Mapping[str, OwnRpc] = {}


ReadRequest = Callable[[], Awaitable[bytes | None]]
"""The client's next request; None after half-close."""


END_PAUSE_S: Final = 0.001
"""When a client disconnects, gRPC reports the end of its requests a moment before it reports the disconnect: a handler
must not take one for the other."""


GATHERS_FROM: Final = 8
"""Requests without a response, from which on they leave in groups: a client that waits for responses has fewer."""
MAX_GATHERED: Final = 16
GATHER_S: Final = 0.001
"""How long one waits for others."""
SMALL_BYTES: Final = 4096
"""Larger ones do not wait."""


class PassedCall:
    """Requests, responses and outcome of one call.

    Purpose: passes requests on as far as the handler takes them, and writes responses as they arrive, until the call
    ends.
    Invariants: a request is read only if the handler may have it waiting; responses are written in order, one at a
    time, and before the status; at most the credit of one call waits for a client that reads slowly. After its outcome
    nothing more of the call is sent.
    Owner: the servicer's task of this call.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        write: Callable[[bytes], Awaitable[object]],
        write_initial: Callable[[MetadataPairs], Awaitable[object]],
        read: ReadRequest | None = None,
    ) -> None:
        """`read` None: the call has its one request."""
        self.trailers: MetadataPairs = ()
        """That the handler has set, of a call that ended well."""
        self._dispatcher = dispatcher
        self._taking = Taking(dispatcher, {})
        self._write = write
        self._write_initial = write_initial
        self._read = read
        self._deliveries: asyncio.Queue[Delivery | Failure] = asyncio.Queue()
        self._begun: DeliverTaken | None = None
        """Names the replica that requests go to."""
        self._has_room = asyncio.Event()
        self._sizes: deque[int] = deque()
        """Of requests that the handler has not taken."""
        self._bytes = 0
        self._gathered: list[bytes | None] = []
        """Requests that leave together; None: there are no more."""
        self._unanswered = 0
        """Requests that are more than the responses so far."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    # -- from the core -----------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        """Responses, or the outcome."""
        self._is_over = not isinstance(delivery, DeliverValues)
        self._deliveries.put_nowait(delivery)

    def taken(self, delivery: DeliverTaken) -> None:
        """The handler has begun, or has taken requests."""
        self._begun = self._begun or delivery
        sizes = self._sizes
        for _ in range(min(delivery.count, len(sizes))):
            self._bytes -= sizes.popleft()
        self._has_room.set()

    # -- the task ----------------------------------------------------------------------------------------------------

    async def run(self) -> Failure | None:
        """Passes all on until the call has ended; returns why it failed, if it did."""
        if self._read is None:
            return await self._respond()
        reading = asyncio.ensure_future(self._pass_requests(self._read))
        try:
            return await self._respond()
        finally:
            reading.cancel()
            if self._timer is not None:
                self._timer.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _pass_requests(self, read: ReadRequest) -> None:
        while True:
            await self._has_room.wait()
            while self._begun is not None and not self._is_full:
                request = await read()
                if request is None:
                    await asyncio.sleep(END_PAUSE_S)  # this task ends here where the client has left
                elif len(request) > MAX_INLINE_BYTES:
                    failure = convert.too_large(len(request), fix="send more in several requests")
                    self._deliveries.put_nowait(replace(failure, executed=Executed.YES))
                    return
                if self._is_over or not self._take(self._begun, request) or request is None:
                    return
            self._has_room.clear()

    @property
    def _is_full(self) -> bool:
        return len(self._sizes) >= MAX_REQUESTS_AHEAD or self._bytes >= MAX_REQUEST_BYTES_AHEAD

    def _take(self, begun: DeliverTaken, request: bytes | None) -> bool:
        """Sends the request, now or with others. Returns whether the replica still takes requests of this call."""
        gathered = self._gathered
        gathered.append(request)
        if request is not None:
            self._sizes.append(len(request))
            self._bytes += len(request)
            self._unanswered += 1
            is_flood = self._unanswered >= GATHERS_FROM and len(request) < SMALL_BYTES
            if is_flood and len(gathered) < MAX_GATHERED:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._send, begun)
                return True
        return self._send(begun)

    def _send(self, begun: DeliverTaken) -> bool:
        """Sends what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, []
        link = self._dispatcher.links.of(begun.replica, begun.links)
        if link is None or self._is_over:
            return False
        link.request(begun.run_id, gathered)
        return True

    async def _respond(self) -> Failure | None:
        while True:
            match await self._deliveries.get():
                case DeliverValues() as values:
                    self._taking.leave(values)
                    for payload in values.payloads:
                        if failure := await self._pass(joined(payload)):  # type: ignore[arg-type]  # no chunks here
                            return failure
                    self._taking.written()
                case DeliverFailure(failure=failure):
                    return failure
                case DeliverDone():
                    return None
                case DeliverResults(payloads=payloads):
                    if (size := len(payloads[0])) > MAX_INLINE_BYTES:
                        return convert.result_too_large(size, convert.STREAM_RESPONSES)
                    return await self._pass(joined(payloads[0]))
                case failure:
                    return failure

    async def _pass(self, payload: bytes) -> Failure | None:
        """Writes what is in a payload; returns why it cannot, if so."""
        if self._unanswered:
            self._unanswered -= 1
        if (message := message_alone(payload)) is not None:
            await self._write(message)
            return None
        try:
            for kind, content in frames_in(payload):
                if kind == MESSAGE:
                    await self._write(content)
                elif kind == INITIAL:
                    await self._write_initial(metadata_of(content))
                else:
                    self.trailers = metadata_of(content)
        except BadFrames:
            return NOT_FRAMED
        return None


NOT_FRAMED = Failure(
    reason=Reason.INTERNAL, message="the replica has sent a response that is not framed", executed=Executed.YES
)
