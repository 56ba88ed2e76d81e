"""The membership streams of routers: the newest table down, the table of an earlier generation and acknowledgements up.

Invariants: a router has one stream, that of its newest attachment; another router of the same id is refused while it is
attached, or the two would replace each other for ever; what it is sent of tables is up to its `TableFeed`; a router
that is silent past its lease, or ends its stream in order, is no longer listed.
Owner: the event loop. Each stream's rpc runs in `serve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import Any, TypeAlias

import grpc

from controller_service.config import HelloBounds
from controller_service.convert.checks import end_reason_from_wire
from controller_service.convert.routers import (
    EarlierTableAssembly,
    links_from_wire,
    load_from_wire,
    router_from_wire,
    router_report_from_wire,
)
from controller_service.core.loads import BackendLoad, RecentReports, RouterLoad
from controller_service.core.observed import routers
from controller_service.core.observed.state import ObservedRouter
from controller_service.core.partition_owners import Incarnation
from controller_service.core.roster import HeldTable
from controller_service.shell.leadership import LeadershipBoard, NewerMembers
from controller_service.shell.members.member_stream import LeaseWatch, MemberStream
from controller_service.shell.members.tables import TableBoard, TableFeed
from controller_service.shell.mesh_state import Concern, Key, MeshState
from controller_service.store.protocol import Store
from slotmesh.errors import Failure, Reason
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.runtime.clock import Clock
from slotmesh.runtime.loop_slices import LoopSlices
from slotmesh.status import to_exception
from slotmesh.transport.duplex import read_request

ReadHello: TypeAlias = tuple[wire.AttachRouterRequest, EarlierTableAssembly]


class RouterHellos:
    """Reads the first frames of routers' streams: the parts of the table that a router has in force, and its hello.

    Bytes and parts of one table, and the bytes of the tables of all routers that were not read yet, are counted before
    anything of a part is read. A hello has a limited time. A part holds the event loop for a slice, and one element of
    it more, at most.
    """

    def __init__(
        self,
        bounds: HelloBounds,
        clock: Clock,
        generation: str,
        waiting: Callable[[], Container[str]],
        is_newer: Callable[[HeldTable], bool] = lambda _: False,
    ) -> None:
        """`generation`: the controller's own. `waiting`: the routers whose tables were not learnt from yet.

        Of tables of its own generation the configuration is read if they are newer (`is_newer`).
        """
        self._is_newer = is_newer
        self._bounds = bounds
        self._clock = clock
        self._generation = generation
        self._waiting = waiting
        self._reading = 0
        """Bytes of tables whose hello has not arrived."""
        self._waiting_bytes: dict[str, int] = {}
        """Bytes of tables that wait, by router."""

    async def read(self, context: grpc.aio.ServicerContext[Any, Any]) -> ReadHello | None:
        """The hello of a stream, and the table that the router has in force; None if the stream ends before it.

        Raises:
            SlotmeshError: PAYLOAD_TOO_LARGE or QUOTA_EXCEEDED, a bound was passed; BAD_REQUEST, the table makes no
                sense or is not complete, or the hello did not arrive in time.
        """
        account = _Account()
        try:
            async with asyncio.timeout(self._bounds.timeout_s):
                hello = await self._read(context, account)
        except TimeoutError:
            text = f"hello: did not arrive within {self._bounds.timeout_s:g} s (router_hello_timeout of the controller)"
            raise _refusal(Reason.BAD_REQUEST, "hello", text) from None
        finally:
            self._reading -= account.size
        if hello is not None and hello[1].finish() is not None:
            self._waiting_bytes[hello[0].hello.router_id] = account.size
        return hello

    async def _read(self, context: grpc.aio.ServicerContext[Any, Any], account: _Account) -> ReadHello | None:
        table = EarlierTableAssembly(self._generation, now := self._clock.time_of_day(), self._is_newer)
        is_open = False  # whether the last part of a table is still to come
        while (frame := await read_request(context)) is not None and frame.WhichOneof("frame") == "table_part":
            part: wire.TablePart = frame.table_part
            self._count(account, part.ByteSize())
            if part.is_first:
                table = EarlierTableAssembly(self._generation, now, self._is_newer)
            elif not is_open:
                raise _refusal(Reason.BAD_REQUEST, "table_part", "table_part: no table has begun: is_first is not set")
            is_open = not part.is_last
            await _convert(table, part.table)
        if frame is None:
            return None
        if is_open:
            text = "hello: arrived before the last part of the table (table_part.is_last)"
            raise _refusal(Reason.BAD_REQUEST, "table_part.is_last", text)
        return frame, table

    def _count(self, account: _Account, size: int) -> None:
        bounds, field = self._bounds, "table_part"
        account.parts += 1
        if account.parts > bounds.table_parts:
            text = f"{field}: the table has more than {bounds.table_parts} parts (max_router_table_parts)"
            raise _refusal(Reason.PAYLOAD_TOO_LARGE, field, text)
        if account.size + size > bounds.table_bytes:
            text = f"{field}: the table has {account.size + size} bytes so far, {bounds.table_bytes} at most"
            raise _refusal(Reason.PAYLOAD_TOO_LARGE, field, f"{text} (max_router_table_size of the controller)")
        waiting = self._waiting()
        self._waiting_bytes = {router: known for router, known in self._waiting_bytes.items() if router in waiting}
        known = self._reading + sum(self._waiting_bytes.values())
        if known + size > bounds.tables_bytes:
            text = f"{field}: tables of routers have {known + size} bytes, {bounds.tables_bytes} at most: attach later"
            raise _refusal(Reason.QUOTA_EXCEEDED, field, f"{text} (max_router_tables_size of the controller)")
        account.size += size
        self._reading += size


class _Account:
    """What one stream has sent of its table."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts = self.size = 0


async def _convert(table: EarlierTableAssembly, part: wire.RoutingTable) -> None:
    slices = LoopSlices()
    for _ in table.add(part):
        if slices.are_used:
            await slices.rest()


def _refusal(reason: Reason, field: str, text: str) -> Exception:
    return to_exception(Failure(reason=reason, message=text, metadata={"field": field}))


AttachedRouterStream = MemberStream[wire.AttachRouterRequest, wire.AttachRouterResponse]


class RouterLinks:
    """All attached routers."""

    def __init__(
        self,
        state: MeshState,
        store: Store,
        board: TableBoard,
        leadership: LeadershipBoard,
        newer: NewerMembers,
        *,
        bounds: HelloBounds,
        lease_s: float,
        on_loads: Callable[[tuple[BackendLoad, ...]], None] = lambda _: None,
    ) -> None:
        """Tables of other generations than that of the store are received, and taken over.

        Routers get tables only while `newer` lets this controller decide.
        `on_loads` is called with the load in each report.
        """
        self._on_loads = on_loads
        self._newer = newer
        self._state = state
        self._store = store
        self._board = board
        self._leadership = leadership
        self._streams: dict[str, AttachedRouterStream] = {}
        self._ended: dict[str, str] = {}
        """Of listed routers without a stream: why their last one has ended."""
        self._hellos = RouterHellos(
            bounds, state.clock, store.generation, lambda: state.observed.earlier_tables, newer.is_newer
        )
        self.loads: dict[str, RecentReports[RouterLoad]] = {}
        """What the routers that are listed have reported. Not observed state: it changes each second."""
        self._leases = LeaseWatch(state.clock, lease_s=lease_s, on_silent=self._silent)
        newer.listen(self._wake_all)

    def __len__(self) -> int:
        return len(self._streams)

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Runs one `AttachRouter`."""
        read = await self._hellos.read(context)
        if read is None:
            return
        first, table = read
        feed = TableFeed(self._board)
        sent: tuple[str, ...] = ()
        has_sent_hold = False

        def next_frame() -> wire.AttachRouterResponse | None:
            nonlocal sent, has_sent_hold
            if not self._newer.decides:
                if not self._newer or has_sent_hold:
                    return None
                has_sent_hold = True
                return wire.AttachRouterResponse(is_on_hold=True)
            if (frame := feed.next_frame()) is not None:
                frame.term = self._store.term
            elif self._leadership.controllers not in {sent, ()}:
                sent = self._leadership.controllers
                frame = wire.AttachRouterResponse(term=self._store.term, controller_addresses=sent)
            return frame

        stream = AttachedRouterStream(context, next_frame)
        router = router_from_wire(first, started_at=self._state.clock.now())
        router_id = router.router_id
        self._newer.look_at(f"router/{router_id}", table.held, table.mesh())
        self._newer.router_attached(router.address, table.router_addresses, has_table=bool(table.held.revision))
        if older := self._streams.get(router_id):
            self._refuse_namesake(router)
            older.end(Failure(reason=Reason.ROUTER_LOST, message="the router attached again, elsewhere"))
        self._streams[router_id] = stream
        self._state.apply(routers.attached(self._state.observed, router, table.finish()), Key(Concern.TABLE))
        self._leases.renew(router_id)
        self._ended.pop(router_id, None)
        self._board.listen(stream.wake)
        self._leadership.listen(stream.wake)
        try:
            await stream.run(lambda frame: self._heard(router_id, stream, feed, frame))
            if self._streams.get(router_id) is stream:
                self._leases.end(router_id)
                self._left(router_id, "said goodbye")
        finally:
            self._board.ignore(stream.wake)
            self._leadership.ignore(stream.wake)
            if self._streams.get(router_id) is stream:
                del self._streams[router_id]
                if router_id in self._state.observed.routers:
                    self._ended[router_id] = stream.end_reason

    def close(self) -> None:
        """The controller ends: routers keep their table, and attach again when there is another one."""
        self._leases.close()
        for stream in self._streams.values():
            stream.end(Failure(reason=Reason.DRAINING, message="the controller is stopping"))

    def _wake_all(self) -> None:
        for stream in self._streams.values():
            stream.wake()

    def _refuse_namesake(self, router: ObservedRouter) -> None:
        """A router that attaches again has the same address."""
        known = self._state.observed.routers.get(router.router_id)
        if known is not None and known.address != router.address:
            text = f"hello.router_id: a router {known.router_id!r} is attached already, from {known.address}"
            raise to_exception(Failure(reason=Reason.BAD_REQUEST, message=text, metadata={"field": "hello.router_id"}))

    def _heard(
        self, router_id: str, stream: AttachedRouterStream, feed: TableFeed, frame: wire.AttachRouterRequest
    ) -> None:
        if self._streams.get(router_id) is not stream:
            return
        if frame.WhichOneof("frame") == "table_request":
            self._leases.renew(router_id)
            feed.asked()
            stream.wake()
            return
        report = router_report_from_wire(frame)
        observed = self._state.observed
        self._leases.renew(router_id)
        load = self._keep_load(router_id, report)
        self._state.apply(
            routers.reported(
                self._state.observed,
                router_id,
                generation=report.generation,
                revision=report.revision,
                **links_from_wire(report),
                loads=load.backends,
                end_reason=end_reason_from_wire(report.end_reason),
                now=self._state.clock.now(),
            ),
            # Which links work decides about replicas that its table names, and about those whose id another one has.
            *([Key(Concern.TABLE)] if router_id in observed.earlier_tables or observed.unresolved else []),
        )
        for each in report.ended:
            owner = Incarnation(each.replica_id, each.incarnation)
            self._state.replica_ended(owner, f"reported its end to router {router_id}")
        self._on_loads(load.backends)

    def _keep_load(self, router_id: str, report: wire.RouterReport) -> RouterLoad:
        router = self._state.observed.routers.get(router_id)
        load = load_from_wire(report, router.run_id if router is not None else "")
        recent = self.loads.get(router_id)
        if recent is None or ((before := recent.newest) is not None and not load.is_since(before)):
            recent = self.loads[router_id] = RecentReports()
        recent.add(load, self._state.clock.now())
        return load

    def _silent(self, router_id: str) -> None:
        known = self._state.observed.routers.get(router_id)
        where = "" if known is None else f", at {known.address}" + (f", process {known.pid}" if known.pid else "")
        why = self._ended.pop(router_id, "its connection is open, and it sends nothing")
        self._left(router_id, f"was silent past its lease: {why}{where}")
        if stream := self._streams.get(router_id):
            stream.end(Failure(reason=Reason.ROUTER_LOST, message="silent past its lease: attach again"))

    def _left(self, router_id: str, message: str) -> None:
        self.loads.pop(router_id, None)
        self._state.apply(routers.left(self._state.observed, router_id, message), Key(Concern.TABLE))
