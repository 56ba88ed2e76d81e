"""The membership streams of routers: the newest table down, the table of an earlier generation and acknowledgements up.

Invariants: a router has one stream, that of its newest attachment; another router of the same id is refused while it is
attached, or the two would replace each other for ever; it is sent the newest table only, and none twice on a stream; a
router that is silent past its lease, or ends its stream in order, is no longer listed.
Owner: the event loop. Each stream's rpc runs in `serve`.
"""

from __future__ import annotations

from typing import Any

import grpc

from controller_service.convert.routers import (
    brought_from_wire,
    linked_from_wire,
    loads_from_wire,
    router_from_wire,
    router_report_from_wire,
)
from controller_service.core import routers
from controller_service.core.observed import ObservedRouter
from controller_service.core.partitions import Incarnation
from controller_service.shell.lease_watch import LeaseWatch
from controller_service.shell.member_stream import MemberStream
from controller_service.shell.mesh_state import Concern, Key, MeshState
from controller_service.shell.table_board import TableBoard
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.duplex import read_request
from slotmesh.status import to_exception
from slotmesh.v1 import membership_service_pb2 as wire

AttachedRouterStream = MemberStream[wire.AttachRouterRequest, wire.AttachRouterResponse]


class RouterLinks:
    """All attached routers."""

    def __init__(self, state: MeshState, board: TableBoard, *, lease_s: float, generation: str) -> None:
        """`generation` is that of the store: tables of others are brought, and taken over."""
        self._state = state
        self._generation = generation
        self._board = board
        self._streams: dict[str, AttachedRouterStream] = {}
        self._leases = LeaseWatch(state.clock, lease_s=lease_s, on_silent=self._silent)

    def __len__(self) -> int:
        return len(self._streams)

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Runs one `AttachRouter`."""
        sent: wire.AttachRouterResponse | None = None

        def next_frame() -> wire.AttachRouterResponse | None:
            nonlocal sent
            if self._board.message is sent:
                return None
            sent = self._board.message
            return sent

        stream = AttachedRouterStream(context, next_frame)
        first = await read_request(context)
        if first is None:
            return
        router = router_from_wire(first, started_at=self._state.clock.now())
        clock = self._state.clock
        brought = brought_from_wire(first.hello, generation=self._generation, now=clock.time_of_day())
        router_id = router.router_id
        if older := self._streams.get(router_id):
            self._refuse_namesake(router)
            older.end(Failure(reason=Reason.ROUTER_LOST, message="the router attached again, elsewhere"))
        self._streams[router_id] = stream
        self._state.apply(routers.attached(self._state.observed, router, brought), Key(Concern.TABLE))
        self._leases.heard(router_id)
        self._board.listen(stream.wake)
        try:
            await stream.run(lambda frame: self._heard(router_id, stream, frame))
            if self._streams.get(router_id) is stream:
                self._leases.end(router_id)
                self._left(router_id, "said goodbye")
        finally:
            self._board.ignore(stream.wake)
            if self._streams.get(router_id) is stream:
                del self._streams[router_id]

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

    def _heard(self, router_id: str, stream: AttachedRouterStream, frame: wire.AttachRouterRequest) -> None:
        if self._streams.get(router_id) is not stream:
            return
        report = router_report_from_wire(frame)
        observed = self._state.observed
        self._leases.heard(router_id)
        self._state.apply(
            routers.reported(
                self._state.observed,
                router_id,
                generation=report.generation,
                revision=report.revision,
                linked_replica_ids=tuple(report.linked_replica_ids),
                linked=linked_from_wire(report),
                loads=loads_from_wire(report),
            ),
            # Which links work decides about replicas that its table names, and about those whose id another one has.
            *([Key(Concern.TABLE)] if router_id in observed.brought or observed.elders else []),
        )
        for each in report.ended:
            owner = Incarnation(each.replica_id, each.incarnation)
            self._state.replica_ended(owner, f"told router {router_id} that it has ended")

    def _silent(self, router_id: str) -> None:
        self._left(router_id, "was silent past its lease")
        if stream := self._streams.get(router_id):
            stream.end(Failure(reason=Reason.ROUTER_LOST, message="silent past its lease: attach again"))

    def _left(self, router_id: str, message: str) -> None:
        self._state.apply(routers.left(self._state.observed, router_id, message), Key(Concern.TABLE))
