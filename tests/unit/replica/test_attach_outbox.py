"""What waits for a client of a direct stream counts as many bytes as it takes."""

from __future__ import annotations

import asyncio

import pytest

from replica_service.convert.slots import Issuer
from replica_service.core.events import ReportAttach
from replica_service.core.runs import RouterPeer
from replica_service.shell.links.attach_stream import FRAME_BYTES, AttachOutbox, Response
from slotmesh.errors import Failure, Reason
from slotmesh.transport.prompt_writer import PromptWriter
from tests.support.fakes.clock import FakeClock

pytestmark = pytest.mark.asyncio


async def test_each_frame_counts() -> None:
    never = asyncio.Event()

    async def write(_: Response) -> None:
        await never.wait()

    writer: PromptWriter[Response] = PromptWriter(write)
    outbox = AttachOutbox(writer, Issuer(FakeClock()))
    outbox.results(1, [b""], 0, "")
    assert writer.backlog == 0, "it is being written"
    outbox.results(2, [b"x" * 1000, b"y" * 500], 1500, "")
    assert writer.backlog == 2 * FRAME_BYTES + 1500
    outbox.done(4, 2)
    assert writer.backlog == 4 * FRAME_BYTES + 1500
    outbox.failed(6, 1, Failure(reason=Reason.HANDLER_ERROR, message="z" * 1000))
    assert writer.backlog > 5 * FRAME_BYTES + 2500
    before = writer.backlog
    outbox.slot_changed(ReportAttach(RouterPeer(outbox=outbox, stream_id="s"), 1, None))
    assert writer.backlog > before + FRAME_BYTES
    writer.stop()
