"""The membership streams of routers: the newest table down, the table of an earlier generation and acknowledgements up.

Invariants: a router has one stream, that of its newest attachment; another router of the same id is refused while it is
attached, or the two would replace each other for ever; what it is sent of tables is up to its `TableFeed`; a router
that is silent past its lease, or ends its stream in order, is no longer listed.
Owner: the event loop. Each stream's rpc runs in `serve`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from controller_service.config import HelloBounds
from controller_service.convert.checks import end_reason_from_wire
from controller_service.convert.router_loads import load_from_wire
from controller_service.convert.routers import linked_from_wire, router_from_wire, router_report_from_wire
from controller_service.core import routers
from controller_service.core.backend_load import BackendLoad, RouterLoad
from controller_service.core.observed import ObservedRouter
from controller_service.core.partitions import Incarnation
from controller_service.core.recent import RecentReports
from controller_service.shell.leadership import LeadershipBoard
from controller_service.shell.lease_watch import LeaseWatch
from controller_service.shell.member_stream import MemberStream
from controller_service.shell.mesh_state import Concern, Key, MeshState
from controller_service.shell.newer_members import NewerMembers
from controller_service.shell.router_hellos import RouterHellos
from controller_service.shell.table_board import TableBoard, TableTooLarge
from controller_service.shell.table_feed import TableFeed
from controller_service.store.protocol import Store
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception
from slotmesh.v1 import membership_service_pb2 as wire
from slotmesh.wire.features import TABLE_DELTAS, TABLE_PARTS

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
        """Tables of other generations than that of the store are brought, and taken over.

        Routers get tables only while there are no `newer` members.
        `on_loads` is told the load that each report has.
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
            bounds, state.clock, store.generation, lambda: state.observed.brought, newer.is_newer
        )
        self.loads: dict[str, RecentReports[RouterLoad]] = {}
        """What the routers that are listed have reported. Not observed state: it changes each second."""
        self._leases = LeaseWatch(state.clock, lease_s=lease_s, on_silent=self._silent)

    def __len__(self) -> int:
        return len(self._streams)

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Runs one `AttachRouter`."""
        read = await self._hellos.read(context)
        if read is None:
            return
        first = read.frame
        known = first.hello.known_features
        feed = TableFeed(self._board, takes_deltas=TABLE_DELTAS in known, takes_parts=TABLE_PARTS in known)
        told: tuple[str, ...] = ()

        def next_frame() -> wire.AttachRouterResponse | None:
            nonlocal told
            if self._newer:
                return None
            try:
                frame = feed.next_frame()
            except TableTooLarge as refusal:
                stream.end(Failure(reason=Reason.PAYLOAD_TOO_LARGE, message=str(refusal)))
                return None
            if frame is not None:
                frame.term = self._store.term
            elif self._leadership.controllers not in {told, ()}:
                told = self._leadership.controllers
                frame = wire.AttachRouterResponse(term=self._store.term, controller_addresses=told)
            return frame

        stream = AttachedRouterStream(context, next_frame)
        router = router_from_wire(first, started_at=self._state.clock.now())
        router_id = router.router_id
        self._newer.look_at(f"router/{router_id}", read.held, read.mesh)
        if older := self._streams.get(router_id):
            self._refuse_namesake(router)
            older.end(Failure(reason=Reason.ROUTER_LOST, message="the router attached again, elsewhere"))
        self._streams[router_id] = stream
        self._state.apply(routers.attached(self._state.observed, router, read.brought), Key(Concern.TABLE))
        self._leases.heard(router_id)
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
            self._leases.heard(router_id)
            feed.asked()
            stream.wake()
            return
        report = router_report_from_wire(frame)
        observed = self._state.observed
        self._leases.heard(router_id)
        load = self._keep_load(router_id, report)
        self._state.apply(
            routers.reported(
                self._state.observed,
                router_id,
                generation=report.generation,
                revision=report.revision,
                linked_replica_ids=tuple(report.linked_replica_ids),
                linked=linked_from_wire(report),
                loads=load.backends,
                end_reason=end_reason_from_wire(report.end_reason),
                now=self._state.clock.now(),
            ),
            # Which links work decides about replicas that its table names, and about those whose id another one has.
            *([Key(Concern.TABLE)] if router_id in observed.brought or observed.elders else []),
        )
        for each in report.ended:
            owner = Incarnation(each.replica_id, each.incarnation)
            self._state.replica_ended(owner, f"told router {router_id} that it has ended")
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
        why = self._ended.pop(router_id, "")
        self._left(router_id, "was silent past its lease" + (f": {why}" if why else ""))
        if stream := self._streams.get(router_id):
            stream.end(Failure(reason=Reason.ROUTER_LOST, message="silent past its lease: attach again"))

    def _left(self, router_id: str, message: str) -> None:
        self.loads.pop(router_id, None)
        self._state.apply(routers.left(self._state.observed, router_id, message), Key(Concern.TABLE))
