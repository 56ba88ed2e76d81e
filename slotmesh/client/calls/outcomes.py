"""Outcomes become results of futures: payloads decoded results, failures typed exceptions, other ends None.

Calls that fail with one failure get different retry delays, so that they are not retried together.
Invariants: a future that is done (because it was cancelled) is not changed. If one failure meets many calls whose
futures were dropped, asyncio reports one of them as never retrieved, not all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import grpc

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.payloads import too_large
from slotmesh.client.calls.sent_parts import Gather, SentPart
from slotmesh.codec import OCTET_STREAM, DecodeError
from slotmesh.errors import Executed, Failure, Reason, SlotmeshError
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.status import from_rpc_error, is_unknown_there, to_exception


def refusal_of(error: grpc.RpcError, address: str, dialer: Dialer, service: str = "RouterService") -> Failure:
    """As `from_rpc_error`, for an rpc to a router, in the words of the client.

    If the server does not have the rpc, the message contains its address, which the transport's does not; if
    certificates are the reason, it contains the way out.
    """
    failure = from_rpc_error(error)
    if failure.reason is Reason.ROUTER_LOST:
        return replace(failure, message=dialer.explained(failure.message, Role.ROUTER))
    if failure.reason is not Reason.NOT_IMPLEMENTED or not is_unknown_there(error):
        return failure
    message = (
        f"what answers at {address} is not a router: it does not know slotmesh.v1.{service} ({failure.message});"
        " give connect() the address of one"
    )
    return replace(failure, message=message)


def credential_refusal(error: grpc.RpcError) -> Failure | None:
    """The failure of the calls of a stream that ended because the caller's credential is no longer valid; else None."""
    failure = from_rpc_error(error)
    return replace(failure, executed=Executed.UNKNOWN) if failure.reason is Reason.UNAUTHENTICATED else None


RETRY_SPREAD: Final = 0.2
"""Share, up and down, by which the retry delays of calls with the same failure differ."""


def deliver(part: SentPart, at: int, payloads: list[bytes], content_type: str) -> None:
    """Delivers results of consecutive calls of a part, the first of them at `at`."""
    spec = part.spec
    if not spec.options.reply:
        finish(part, at, len(payloads))
        return
    if (content_type or OCTET_STREAM) != spec.content_type:
        fail(part, at, len(payloads), other_content_type(part, content_type))
        return
    if spec.streaming:  # of a method that returns: its result is the only value
        for sink, payload in zip(_taken(part, at, len(payloads)), payloads, strict=True):
            if not sink.done():
                sink.put_last(payload)
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
        _resolve(sink, payload, decode, spec)


def deliver_scattered(part: SentPart, places: list[int], payloads: list[bytes], content_type: str) -> None:
    """Delivers results of calls of a part, at these places."""
    spec, sinks = part.spec, part.sinks
    is_plain = spec.options.reply and not spec.streaming and (content_type or OCTET_STREAM) == spec.content_type
    if part.gather is not None or not is_plain:
        for at, payload in zip(places, payloads, strict=True):
            deliver(part, at, [payload], content_type)
        return
    decode = spec.decode
    for at, payload in zip(places, payloads, strict=True):
        sink, sinks[at] = sinks[at], None
        _resolve(sink, payload, decode, spec)


def finish(part: SentPart, at: int, count: int) -> None:
    """Ends consecutive calls of a part that have no results of their own."""
    if part.gather is not None:
        if not part.gather.done():
            part.gather.put(part.offset + at, [None] * count)
        return
    for sink in _taken(part, at, count):
        if not sink.done():
            sink.set_result(None)


def fail(part: SentPart, at: int, count: int, failure: Failure, *, is_repeated: bool = False) -> None:
    """Fails consecutive calls of a part. `is_repeated`: other calls got this failure before."""
    spread = RETRY_SPREAD if count > 1 else 0.0
    if part.spec.stop_generation:
        _stop_lanes(part, at, count, failure)
    if part.gather is not None:
        if not part.gather.done():
            errors = [_exception(part, index, failure, spread) for index in range(at, at + count)]
            part.gather.fail(part.offset + at, errors)
        return
    for index, sink in enumerate(_taken(part, at, count), at):
        if not sink.done():
            sink.set_exception(_exception(part, index, failure, spread))
            if is_repeated:
                sink.exception()  # marks it as retrieved for asyncio
            is_repeated = True


def refuse(part: SentPart, limit: int | None = None) -> None:
    """Fails calls that were removed from the outbox unsent: their payload is over the limit, or their lane stopped."""
    stop = part.spec.queue.stop
    for at, payload in enumerate(part.payloads):
        if limit is not None and len(payload) > limit:
            fail(part, at, 1, too_large(len(payload), limit), is_repeated=at > 0)
        elif stop is not None:
            fail(part, at, 1, stop.refusal(), is_repeated=at > 0)
    part.settled(0, part.count)


def refuse_sent(part: SentPart, place: int) -> None:
    """As `refuse`, for a call that was sent before and is not sent again."""
    spec = part.spec if part.specs is None else part.specs[place]
    if spec.queue.stop is not None:
        fail(part, place, 1, spec.queue.stop.refusal(was_sent=True))


def _stop_lanes(part: SentPart, at: int, count: int, failure: Failure) -> None:
    """Records the failure in the lanes of these calls: of each lane, the first call that failed."""
    specs = [part.spec] * count if part.specs is None else part.specs[at : at + count]
    recorded: set[CallSpec] = set()
    for index, spec in enumerate(specs, at):
        if spec not in recorded and spec.queue.stop is not None:
            recorded.add(spec)
            call_id = part.first + index if part.first else 0
            spec.queue.stop.fail(spec.queue, spec.stop_generation, call_id, failure)


def give_up(part: SentPart, failure: Failure) -> None:
    """Fails all calls of a part that have no outcome. Later outcomes are dropped."""
    for index, (at, count) in enumerate(part.open_spans()):
        fail(part, at, count, failure, is_repeated=index > 0)
    part.forsake()


def _resolve(sink: Any, payload: bytes, decode: Callable[[bytes], Any] | None, spec: CallSpec) -> None:
    """Sets the result of one future."""
    if sink.done():
        return
    if decode is None:
        sink.set_result(payload)
        return
    try:
        result = decode(payload)
    except DecodeError as error:
        sink.set_exception(spec.undecodable(error))
    else:
        sink.set_result(result)


def _taken(part: SentPart, at: int, count: int) -> list[Any]:
    """The futures of these calls; the part drops them, so that results do not live as long as its slowest call."""
    sinks = part.sinks
    if count == part.count:
        return sinks
    taken = sinks[at : at + count]
    sinks[at : at + count] = [None] * count
    return taken


def _deliver_to_map(
    part: SentPart, gather: Gather, decode: Callable[[bytes], Any], at: int, payloads: list[bytes]
) -> None:
    try:
        gather.put(part.offset + at, part.spec.decode_each(payloads))
        return
    except DecodeError:
        pass  # some cannot be decoded: the loop finds which
    for place, payload in enumerate(payloads, part.offset + at):
        try:
            gather.put(place, [decode(payload)])
        except DecodeError as error:
            gather.fail(place, [part.spec.undecodable(error)])


def _exception(part: SentPart, index: int, failure: Failure, spread: float) -> SlotmeshError:
    spec = part.spec
    if spread and failure.retry_delay_s:
        failure = replace(failure, retry_delay_s=failure.retry_delay_s * random.uniform(1 - spread, 1 + spread))  # noqa: S311 - spreads load, guards nothing
    return to_exception(
        failure,
        endpoint=spec.endpoint,
        method=spec.method,
        call_id=part.first + index if part.first else 0,
    )


def other_content_type(part: SentPart, content_type: str) -> Failure:
    """The failure of a call whose result has another content type than its call."""
    return Failure(
        reason=Reason.INTERNAL,
        message=f"the result is encoded as {content_type}, the call was as {part.spec.content_type}",
        executed=Executed.YES,
    )
