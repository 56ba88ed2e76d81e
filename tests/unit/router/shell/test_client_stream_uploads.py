"""Parts of payloads that come in chunks: kept for as long as their call has no outcome."""

from __future__ import annotations

import pytest

from router_service.core.callers import Window
from router_service.core.limits.unread_results import Unread
from router_service.core.scheduler import RouterScheduler
from router_service.shell.clients.stream import ClientStream
from router_service.shell.dispatcher import Dispatcher
from slotmesh.streams.limits import CHUNK_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.clock import FakeClock

TOTAL = 3 * CHUNK_BYTES


class StreamOnPaper(ClientStream):
    """A stream whose frames nobody writes."""

    def __init__(self) -> None:
        def no_link(*_: object) -> None:
            raise AssertionError("there are no replicas")

        self.clock = FakeClock()
        self.dispatcher = Dispatcher(RouterScheduler(lambda: 0.5), self.clock, no_link)  # type: ignore[arg-type]
        unread = Unread(self.clock.now)
        super().__init__("e", call_pb2.CallOptions(), Window(1024, 2**30), self.dispatcher, unread, self._write)
        self.dispatcher.attach(self.caller, self)

    async def _write(self, frame: router_service_pb2.StreamCallsResponse) -> None: ...

    def announce(self, call_id: int) -> None:
        batch = router_service_pb2.CallBatch(first_call_id=call_id, payloads=[b""], chunked_sizes=[TOTAL])
        assert not list(self.accept(router_service_pb2.CallFrame(batches=[batch])))

    def take_back(self, call_id: int) -> None:
        list(self.cancel(router_service_pb2.CancelCalls(calls=[call_pb2.IdRange(first=call_id, last=call_id)])))

    def bring(self, call_id: int, offset: int) -> None:
        self.upload(call_pb2.Chunk(call_id=call_id, offset=offset, total=TOTAL, data=bytes(CHUNK_BYTES)))

    @property
    def keeps_parts(self) -> bool:
        return bool(self._uploads.under_way)


@pytest.mark.asyncio
@pytest.mark.parametrize("mistake", [False, True])
async def test_parts_of_a_call_that_has_ended_are_not_kept(mistake: bool) -> None:
    stream = StreamOnPaper()
    stream.announce(1)
    stream.bring(1, 0)
    assert stream.keeps_parts
    if mistake:
        stream.bring(1, 7)
    else:
        stream.take_back(1)
    assert not stream.keeps_parts


@pytest.mark.asyncio
async def test_parts_of_another_call_are() -> None:
    stream = StreamOnPaper()
    stream.announce(1)
    stream.announce(2)
    stream.take_back(1)
    assert stream.keeps_parts
