"""Values of a handler that yields, as they come, in the answer to one request.

Invariants: a call that fails before its first value is answered as any other failure; later the stream says it in its
own way, and lines of JSON are cut off, so that nobody takes them for whole. The handler goes on only as the client
reads.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ingress_service.core.counters import Counters
from ingress_service.core.framing import FRAMES, ValueFrames
from ingress_service.core.media import Framing
from ingress_service.core.problems import problem_of
from ingress_service.shell.answers import RequestAnswer
from ingress_service.shell.http_facts import head_of
from slotmesh.client.values.value_stream import ValueStream
from slotmesh.errors import SlotmeshError

KEEP_ALIVE_S: Final = 15.0
MAX_PART_BYTES: Final = 64 * 1024
"""Values that are there already travel together, up to so many bytes."""


class CutShort(Exception):
    """The stream of values failed after some of them: the connection ends without the end of the answer."""


async def send_values(values: ValueStream[bytes], framing: Framing, answer: RequestAnswer, counters: Counters) -> None:
    """Raises SlotmeshError where the call failed before its first value."""
    frames = FRAMES[framing]
    async with values:
        pending: asyncio.Future[bytes] | None = None
        try:
            while True:
                pending = asyncio.ensure_future(anext(values))
                await _wait(pending, frames, answer)
                try:
                    first = pending.result()
                except StopAsyncIteration:
                    break
                if not answer.status:
                    first, head = head_of(first)
                    await answer.begin(frames.content_type, head)
                counters.values[answer.label] += 1
                parts = [frames.value(first)]
                size = len(first)
                while values.has_next and size < MAX_PART_BYTES:
                    value = await anext(values)
                    counters.values[answer.label] += 1
                    parts.append(frames.value(value))
                    size += len(value)
                await answer.part(b"".join(parts))
        except SlotmeshError as error:
            if not answer.status:
                raise
            await answer.part(frames.failure(answer.failed(problem_of(error))), is_last=framing is Framing.EVENTS)
            if framing is not Framing.EVENTS:
                raise CutShort from error
            return
        finally:
            if pending is not None and not pending.done():
                pending.cancel()
    if not answer.status:
        await answer.begin(frames.content_type)
    await answer.part(frames.end, is_last=True)


async def _wait(pending: asyncio.Future[bytes], frames: ValueFrames, answer: RequestAnswer) -> None:
    """Until the next value is there, or the end; comments are sent meanwhile, where the framing has some."""
    while not pending.done():
        done, _ = await asyncio.wait([pending], timeout=KEEP_ALIVE_S if frames.keep_alive else None)
        if not done:
            if not answer.status:
                await answer.begin(frames.content_type)
            await answer.part(frames.keep_alive)
