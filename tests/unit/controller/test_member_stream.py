"""How a membership stream ends while a frame is on its way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_service.shell.members.member_stream import MemberStream
from slotmesh.errors import Failure, Reason, ReplicaGone
from slotmesh.transport import duplex
from tests.support.wait import within


class Context:
    """A peer that says nothing, and takes frames when a test lets it."""

    def __init__(self) -> None:
        self.taking = asyncio.Event()
        self.offered = asyncio.Event()
        self.taken: list[str] = []

    async def read(self) -> Any:
        await asyncio.Event().wait()

    async def write(self, frame: str) -> None:
        self.offered.set()
        await self.taking.wait()
        self.taken.append(frame)


def stream_to(context: Any) -> tuple[MemberStream[str, str], asyncio.Task[None]]:
    frames = ["first"]
    stream = MemberStream[str, str](context, lambda: frames.pop() if frames else None)
    stream.wake()
    return stream, asyncio.create_task(stream.run(lambda _: None))


@pytest.mark.asyncio
async def test_the_end_waits_for_the_write_that_is_under_way() -> None:
    context = Context()
    stream, running = stream_to(context)
    await within(context.offered.wait(), "a frame that is offered")
    stream.end(Failure(reason=Reason.REPLICA_GONE, message="replaced"))
    stream.end(Failure(reason=Reason.INTERNAL, message="the first one counts"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done()
    context.taking.set()
    with pytest.raises(ReplicaGone, match="replaced"):
        await running
    assert context.taken == ["first"]


@pytest.mark.asyncio
async def test_a_peer_that_does_not_read_cannot_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplex, "LAST_WRITE_S", 0.01)
    context = Context()
    stream, running = stream_to(context)
    await within(context.offered.wait(), "a frame that is offered")
    stream.end(Failure(reason=Reason.REPLICA_GONE, message="replaced"))
    with pytest.raises(ReplicaGone):
        async with asyncio.timeout(20.0):
            await running
