"""Outcomes reach those who wait: payloads become results, failures typed exceptions, ends without either None.

One failure for many calls tells each of them to come again at a time of its own, so that they do not come together.
Invariants: a future that is done already (somebody cancelled it) is left alone. Where one failure meets many calls
whose futures were dropped, asyncio reports one of them as never retrieved, not all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from slotmesh.client.gather import Gather
from slotmesh.client.runs import Part
from slotmesh.codec import OCTET_STREAM, DecodeError
from slotmesh.errors import Executed, Failure, Reason, SlotmeshError
from slotmesh.status import to_exception

RETRY_SPREAD: Final = 0.2
"""Share, up and down, by which retry delays of calls that failed together differ."""


def deliver(part: Part, at: int, payloads: list[bytes], content_type: str) -> None:
    """Results of neighbouring calls of a part, the first of them at `at`."""
    spec = part.spec
    if not spec.options.reply:
        finish(part, at, len(payloads))
        return
    if (content_type or OCTET_STREAM) != spec.content_type:
        fail(part, at, len(payloads), _other_content_type(part, content_type))
        return
    decode, gather = spec.decode, part.gather
    if gather is not None:
        if gather.done():
            return
        if decode is None:
            gather.put(part.offset + at, payloads)
        else:
            _deliver_to_map(part, gather, decode, at, payloads)
        return
    for sink, payload in zip(_taken(part, at, len(payloads)), payloads, strict=True):
        if sink.done():
            continue
        if decode is None:
            sink.set_result(payload)
            continue
        try:
            result = decode(payload)
        except DecodeError as error:
            sink.set_exception(part.spec.undecodable(error))
        else:
            sink.set_result(result)


def finish(part: Part, at: int, count: int) -> None:
    """Neighbouring calls of a part have ended, and that is all there is to know."""
    if part.gather is not None:
        if not part.gather.done():
            part.gather.put(part.offset + at, [None] * count)
        return
    for sink in _taken(part, at, count):
        if not sink.done():
            sink.set_result(None)


def fail(part: Part, at: int, count: int, failure: Failure, *, told: bool = False) -> None:
    """The same failure for neighbouring calls of a part. `told`: it met other calls before these."""
    spread = RETRY_SPREAD if count > 1 else 0.0
    if part.gather is not None:
        if not part.gather.done():
            errors = [_exception(part, index, failure, spread) for index in range(at, at + count)]
            part.gather.fail(part.offset + at, errors)
        return
    for index, sink in enumerate(_taken(part, at, count), at):
        if not sink.done():
            sink.set_exception(_exception(part, index, failure, spread))
            if told:
                sink.exception()  # as far as asyncio knows, somebody looked at it
            told = True


def _taken(part: Part, at: int, count: int) -> list[Any]:
    """The futures of these calls; the part forgets them, so that results do not live as long as its slowest call."""
    sinks = part.sinks
    if count == part.count:
        return sinks
    taken = sinks[at : at + count]
    sinks[at : at + count] = [None] * count
    return taken


def _deliver_to_map(part: Part, gather: Gather, decode: Callable[[bytes], Any], at: int, payloads: list[bytes]) -> None:
    try:
        gather.put(part.offset + at, part.spec.decode_each(payloads))
        return
    except DecodeError:
        pass  # some cannot be decoded: find out which
    for place, payload in enumerate(payloads, part.offset + at):
        try:
            gather.put(place, [decode(payload)])
        except DecodeError as error:
            gather.fail(place, [part.spec.undecodable(error)])


def _exception(part: Part, index: int, failure: Failure, spread: float) -> SlotmeshError:
    spec = part.spec
    if spread and failure.retry_delay_s:
        failure = replace(failure, retry_delay_s=failure.retry_delay_s * random.uniform(1 - spread, 1 + spread))  # noqa: S311 - spreads load, guards nothing
    return to_exception(
        failure,
        endpoint=spec.endpoint,
        method=spec.method,
        call_id=part.first_id + index if part.first_id else 0,
    )


def _other_content_type(part: Part, content_type: str) -> Failure:
    return Failure(
        reason=Reason.INTERNAL,
        message=f"the result is encoded as {content_type}, the call was as {part.spec.content_type}",
        executed=Executed.YES,
    )
