"""An outbox of one client that gets values of a replica, both on paper, and what leaves it, one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from router_service.core.commands import CancelRun, DeliverDone, DeliverFailure, DeliverResults, DeliverValues
from router_service.core.events import TableReceived
from router_service.core.limits.unread_results import Unread
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import SessionConnection
from router_service.core.routing_table import BackendRoute, ReplicaRoute, RoutingTable
from router_service.core.scheduler import RouterScheduler
from router_service.shell.clients.outbox import ResultOutbox
from router_service.shell.dispatcher import Dispatcher
from slotmesh.convert.batches import ids_from_wire, ids_of_results
from slotmesh.errors import Failure, Reason
from slotmesh.spec.model import Backend
from slotmesh.streams.chunks import Payload
from slotmesh.transport.pump import Pacer
from slotmesh.v1 import router_service_pb2
from tests.support.fakes.clock import FakeClock
from tests.unit.router.world_callers import options, session_caller

Frame = router_service_pb2.StreamCallsResponse

RUN_ID_OF_CALL = 1000
"""Call 7 is run 1007 at the replica."""


class LinkOnPaper:
    """Remembers which values a replica was told are taken."""

    def __init__(self) -> None:
        self.taken: Counter[int] = Counter()
        self.times = 0

    def take(self, run_id: int, count: int) -> None:
        self.taken[run_id] += count
        self.times += 1

    def flush(self) -> None: ...

    def request(self, run_id: int, requests: Sequence[bytes | None]) -> None: ...

    def cancel(self, command: CancelRun) -> None: ...

    def reconcile(self, session: SessionConnection) -> None: ...

    def retry_in(self, delay_s: float) -> None: ...

    def forget(self, first: int, count: int) -> None: ...

    async def finish(self) -> None: ...

    def close(self) -> None: ...


class Client:
    """An outbox between a replica and a client."""

    def __init__(self, *features: str) -> None:
        self.link = LinkOnPaper()
        clock = FakeClock()
        dispatcher = Dispatcher(RouterScheduler(lambda: 0.5), clock, lambda _replica, _dispatcher: self.link)
        route = ReplicaRoute(key=("r", "life"), address="", max_ongoing=4)
        backend = BackendRoute(settings=Backend(name="b"), replicas=[route])
        table = RoutingTable(generation="g", revision=1, endpoints={}, backends={"b": backend})
        dispatcher.post(TableReceived(table))
        self.replica: RoutedReplica = next(iter(dispatcher.scheduler.topology.replicas.values()))
        self.caller = session_caller()
        self.unread = Unread(clock.now)
        self.outbox = ResultOutbox(self.caller, "e", dispatcher, Pacer(lambda: None, clock.now), self.unread, features)

    def values(self, *values: tuple[int, Payload], content_type: str = "") -> None:
        """Values have come: the call of each, and its payload."""
        ids = [call_id for call_id, _ in values]
        runs = [RUN_ID_OF_CALL + call_id for call_id in ids]
        payloads = [payload for _, payload in values]
        links = self.replica.links
        for call_id in ids:
            self.caller.streams.setdefault(call_id, 0)
        self.outbox.add(DeliverValues(self.caller, ids, list(payloads), content_type, self.replica, runs, links))

    def results(self, *results: tuple[int, bytes]) -> None:
        ids = [call_id for call_id, _ in results]
        payloads = [payload for _, payload in results]
        ends = DeliverResults(self.caller, ids, payloads, "", self.replica, 0, ids[0], 0, options())
        self.outbox.add(ends)

    def done(self, *ids: int) -> None:
        self.outbox.add(DeliverDone(self.caller, ids, 0))

    def failed(self, *ids: int) -> None:
        self.outbox.add(DeliverFailure(self.caller, ids, Failure(reason=Reason.CANCELLED, message="no"), 0))

    def frames(self) -> list[Frame]:
        """All that leaves."""
        frames: list[Frame] = []
        while True:
            self.outbox.written()
            if (frame := self.outbox.next_frame()) is None:
                return frames
            frames.append(frame)

    def heard(self) -> list[Any]:
        """All that leaves, one by one: (call id, payload or size in chunks or how it ended)."""
        return [each for frame in self.frames() for each in said(frame)]


def said(frame: Frame) -> list[tuple[int, object]]:
    if frame.WhichOneof("frame") == "chunk":
        return [(frame.chunk.call_id, "chunk")]
    told: list[tuple[int, object]] = []
    for batch in frame.results.batches:
        sizes: Sequence[int] = batch.chunked_sizes or [0] * len(ids_of_results(batch))
        told += zip(
            ids_of_results(batch), (size or each for size, each in zip(sizes, batch.payloads, strict=True)), strict=True
        )
    told += [(call_id, "failed") for errors in frame.results.errors for call_id in ids_from_wire(errors.calls)]
    told += [(call_id, "done") for each in frame.results.done for call_id in range(each.first, each.last + 1)]
    return told
