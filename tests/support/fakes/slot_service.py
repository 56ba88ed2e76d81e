"""A SlotService that does as it is told: real gRPC on a free port of 127.0.0.1, a table of slots and no replica.

It grants, renews, releases and dispatches as a mesh does, within `permits` for each endpoint; several of it can share
one `FakeTable`, as the routers of one mesh do. It remembers every rpc in `rpcs` and every request in `requests`. Tests
script it by rpc name: `gates` hold an rpc before it does anything, `reply_gates` hold the reply of what was done,
`failures` are answered in place of doing anything, and the rpcs in `cut` break, as with a router that dies, once all is
done.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import grpc
from google.protobuf import duration_pb2

from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S, MAX_LEASE_S
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.status import abort
from slotmesh.v1 import slot_service_pb2 as pb
from slotmesh.v1 import slot_service_pb2_grpc
from tests.support.fakes.serving import FakeServer

Context = grpc.aio.ServicerContext[Any, Any]
LATE_S: Final = 20.0
"""A lease ends so long after its time: a busy machine delays renewals, and what is tested is the client."""


@dataclass(eq=False)
class FakeSlot:
    token: str
    endpoint: str
    replica_id: str
    granted: float
    expires: float
    state: str = "reserved"
    """reserved, running, done, released or expired."""


@dataclass
class FakeTable:
    """The slots of a mesh."""

    permits: dict[str, int] = field(default_factory=dict)
    """By endpoint; 8 where nothing is said."""
    slots: dict[str, FakeSlot] = field(default_factory=dict)
    by_request: dict[str, FakeSlot] = field(default_factory=dict)
    most_held: Counter[str] = field(default_factory=Counter)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def held(self, endpoint: str = "") -> list[FakeSlot]:
        """Slots that take a permit now."""
        now = asyncio.get_running_loop().time()
        for slot in self.slots.values():
            if slot.state == "reserved" and now >= slot.expires + LATE_S:
                slot.state = "expired"
        return [
            slot
            for slot in self.slots.values()
            if slot.state in ("reserved", "running") and endpoint in ("", slot.endpoint)
        ]

    def states(self) -> list[str]:
        self.held()
        return [slot.state for slot in self.slots.values()]

    def has_room(self, endpoint: str) -> bool:
        return len(self.held(endpoint)) < self.permits.get(endpoint, 8)

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()


class FakeSlots(FakeServer, slot_service_pb2_grpc.SlotServiceServicer):
    """Use it as `async with FakeSlots() as slots:`; it listens at `slots.address`."""

    register = staticmethod(slot_service_pb2_grpc.add_SlotServiceServicer_to_server)

    def __init__(self, table: FakeTable | None = None) -> None:
        super().__init__()
        self.table = table or FakeTable()
        self.rpcs: list[str] = []
        """Names, in the order of arrival."""
        self.requests: list[Any] = []
        """As they came."""
        self.gates: dict[str, asyncio.Event] = {}
        self.reply_gates: dict[str, asyncio.Event] = {}
        self.failures: dict[str, Failure] = {}
        self.cut: set[str] = set()
        self.cancelled: list[str] = []
        """Rpcs whose caller left."""
        self.answer: Callable[[bytes], bytes | Failure] = lambda payload: payload
        self.yields: Callable[[bytes], Iterable[bytes | Failure]] = lambda payload: (payload,)
        self._running: defaultdict[str, int] = defaultdict(int)

    # -- what tests do with it -------------------------------------------------------------------------------------

    @property
    def is_free(self) -> bool:
        """Whether no slot takes a permit, and no rpc runs."""
        return not self.table.held() and not any(self._running.values())

    def count(self, rpc: str) -> int:
        return self.rpcs.count(rpc)

    def hold(self, rpc: str) -> asyncio.Event:
        """Holds these before they do anything; `set` lets them go."""
        gate = self.gates[rpc] = asyncio.Event()
        return gate

    def hold_reply(self, rpc: str) -> asyncio.Event:
        gate = self.reply_gates[rpc] = asyncio.Event()
        return gate

    async def until(self, condition: Callable[[], bool], within_s: float = 40.0) -> None:
        """Waits until something is so. Looks whenever an rpc came, did something, or ended."""
        async with asyncio.timeout(within_s), self.table.changed:
            await self.table.changed.wait_for(condition)

    async def until_free(self) -> None:
        """Until no slot takes a permit, although no lease has run out."""
        await self.until(lambda: self.is_free)
        assert "expired" not in self.table.states()

    # -- the service -----------------------------------------------------------------------------------------------

    async def ReserveSlot(self, request: pb.ReserveSlotRequest, context: Context) -> pb.ReserveSlotResponse:
        async with self._rpc("ReserveSlot", request, context):
            slot = self.table.by_request.get(request.request_id)
            if slot is None or slot.state != "reserved":
                slot = await self._grant(request, context)
            try:
                await self._reply("ReserveSlot", context)
            except BaseException:
                if not request.request_id:  # as a router does: whoever has one may ask again
                    slot.state = "released"
                raise
            return pb.ReserveSlotResponse(slot=self._wire(slot))

    async def RenewSlot(self, request: pb.RenewSlotRequest, context: Context) -> pb.RenewSlotResponse:
        async with self._rpc("RenewSlot", request, context):
            slot = await self._find(request.token, context)
            slot.expires = min(asyncio.get_running_loop().time() + _seconds(request.ttl), slot.granted + MAX_LEASE_S)
            await self._reply("RenewSlot", context)
            return pb.RenewSlotResponse(slot=self._wire(slot))

    async def ReleaseSlot(self, request: pb.ReleaseSlotRequest, context: Context) -> pb.ReleaseSlotResponse:
        async with self._rpc("ReleaseSlot", request, context):
            self.table.held()
            slot = self.table.slots.get(request.token)
            if slot is not None and slot.state == "reserved":
                slot.state = "released"
            await self._reply("ReleaseSlot", context)
            return pb.ReleaseSlotResponse(ongoing=len(self.table.held()), max_ongoing=8)

    async def Dispatch(self, request: pb.DispatchRequest, context: Context) -> pb.DispatchResponse:
        async with self._rpc("Dispatch", request, context):
            slot = await self._find(request.token, context)
            slot.state = "running"
            try:
                await self._reply("Dispatch", context)
                outcome = self.answer(request.payload)
            finally:
                slot.state = "done"
            if isinstance(outcome, Failure):
                await abort(context, outcome)
            return pb.DispatchResponse(payload=outcome, content_type=request.options.content_type)

    async def DispatchStreaming(
        self, request: pb.DispatchStreamingRequest, context: Context
    ) -> AsyncIterator[pb.DispatchStreamingResponse]:
        async with self._rpc("DispatchStreaming", request, context):
            slot = await self._find(request.token, context)
            slot.state = "running"
            try:
                for value in self.yields(request.payload):
                    if isinstance(value, Failure):
                        await abort(context, value)
                    else:
                        yield pb.DispatchStreamingResponse(payload=value, content_type=request.options.content_type)
                await self._reply("DispatchStreaming", context)
            finally:
                slot.state = "done"

    def _rpc(self, rpc: str, request: Any, context: Context) -> _Rpc:
        return _Rpc(self, rpc, request, context)

    async def arrived(self, rpc: str, request: Any, context: Context) -> None:
        self.rpcs.append(rpc)
        self.requests.append(request)
        self._running[rpc] += 1
        await self.table.tell()
        if (gate := self.gates.get(rpc)) is not None:
            await gate.wait()
        if (failure := self.failures.get(rpc)) is not None:
            await abort(context, failure)

    async def ended(self, rpc: str, error: BaseException | None) -> None:
        self._running[rpc] -= 1
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            self.cancelled.append(rpc)
        await asyncio.shield(self.table.tell())

    async def _reply(self, rpc: str, context: Context) -> None:
        await self.table.tell()
        if (gate := self.reply_gates.get(rpc)) is not None:
            await gate.wait()
        if rpc in self.cut:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "told to break")

    async def _grant(self, request: pb.ReserveSlotRequest, context: Context) -> FakeSlot:
        table, endpoint = self.table, request.endpoint
        timeout_s = _seconds(request.options.timeout) if request.options.HasField("timeout") else 30.0
        try:
            if not timeout_s:
                raise TimeoutError
            async with asyncio.timeout(timeout_s), table.changed:
                await table.changed.wait_for(lambda: table.has_room(endpoint))
        except TimeoutError:
            await abort(context, Failure(reason=Reason.NO_SLOT, message=f"no slot of {endpoint} was free in time"))
        now = asyncio.get_running_loop().time()
        token = f"token-{len(table.slots)}"
        replica_id = request.replica_id or f"{endpoint}-0"
        slot = FakeSlot(token, endpoint, replica_id, now, now + (_seconds(request.ttl) or DEFAULT_LEASE_S))
        table.slots[token] = table.by_request[request.request_id] = slot
        table.most_held[endpoint] = max(table.most_held[endpoint], len(table.held(endpoint)))
        return slot

    async def _find(self, token: str, context: Context) -> FakeSlot:
        """The slot, if it can still be used."""
        self.table.held()
        slot = self.table.slots.get(token)
        reason = {
            None: Reason.SLOT_UNKNOWN,
            "released": Reason.SLOT_UNKNOWN,
            "expired": Reason.SLOT_EXPIRED,
            "running": Reason.SLOT_USED,
            "done": Reason.SLOT_USED,
        }.get(None if slot is None else slot.state)
        if slot is None or reason is not None:
            failure = Failure(reason=reason or Reason.SLOT_UNKNOWN, message="no", executed=Executed.NO)
            await abort(context, failure)
        return slot

    def _wire(self, slot: FakeSlot) -> pb.Slot:
        left_s = slot.expires - asyncio.get_running_loop().time()
        ttl = duration_pb2.Duration()
        ttl.FromNanoseconds(round(max(left_s, 0) * 1e9))
        return pb.Slot(
            token=slot.token,
            backend=f"{slot.endpoint}-v1",
            replica_id=slot.replica_id,
            replica_address=self.address,
            ongoing=len(self.table.held(slot.endpoint)),
            ttl=ttl,
        )


class _Rpc:
    """One rpc, from its arrival to its end."""

    def __init__(self, slots: FakeSlots, rpc: str, request: Any, context: Context) -> None:
        self._slots = slots
        self._rpc = rpc
        self._request = request
        self._context = context

    async def __aenter__(self) -> None:
        try:
            await self._slots.arrived(self._rpc, self._request, self._context)
        except BaseException as error:
            await self._slots.ended(self._rpc, error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._slots.ended(self._rpc, error)


def _seconds(wire: duration_pb2.Duration) -> float:
    return wire.ToNanoseconds() / 1e9
