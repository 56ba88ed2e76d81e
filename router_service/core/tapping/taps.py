"""All taps of a router: what ends is shown to those that want it.

Purpose: where calls get their outcomes, one look at `is_used` a slice says whether anybody taps; all else is done only
then. Nothing of a call is changed.
Invariants: reservations, other operations on slots, copies for shadows and results that were asked for once more are
not shown.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from router_service.core.routing.sampling import Chance
from router_service.core.runs import RouterRun, Sent
from router_service.core.slots.slot import Dispatch
from router_service.core.tapping.events import TapClosed, TapOpened
from router_service.core.tapping.tap import CallTap, SeenCall
from slotmesh.errors import Executed, Failure
from slotmesh.wire.chunks import Announced, Payload, PayloadParts
from slotmesh.wire.payload_block import nbytes_of


class OpenTaps:
    """By endpoint."""

    def __init__(self, chance: Chance) -> None:
        """`chance` draws uniformly from [0, 1)."""
        self._chance = chance
        self._by_endpoint: dict[str, list[CallTap]] = {}
        self.is_used = False
        """Whether there is any."""

    def opened(self, event: TapOpened, _now: float) -> None:
        self._by_endpoint.setdefault(event.tap.wish.endpoint, []).append(event.tap)
        self.is_used = True

    def closed(self, event: TapClosed, _now: float) -> None:
        endpoint = event.tap.wish.endpoint
        left = [tap for tap in self._by_endpoint.get(endpoint, ()) if tap is not event.tap]
        if left:
            self._by_endpoint[endpoint] = left
        else:
            self._by_endpoint.pop(endpoint, None)
        self.is_used = bool(self._by_endpoint)

    def completed(
        self, sent: Sent, lo: int, count: int, payloads: Sequence[Payload] | None, content_type: str = "", *, now: float
    ) -> None:
        """`count` calls of the slice, from offset `lo`, ended well. `payloads`: their results, if they have any."""
        for tap in self._wanted_by(sent.run):
            for at in self._drawn(tap, count, now):
                size = None if payloads is None else nbytes_of(payloads, at, at + 1)
                result = None if payloads is None else payloads[at] if tap.wish.payload_bytes else None
                self._show(
                    *(tap, sent.run, sent.lo + lo + at, sent, now),
                    response_bytes=size,
                    result=result,
                    content_type=content_type,
                )

    def failed(
        self, run: RouterRun, begin: int, count: int, failure: Failure, sent: Sent | None, *, now: float
    ) -> None:
        """`count` calls of the run, from index `begin`, failed; `sent` is the slice that they were in, if any."""
        for tap in self._wanted_by(run):
            for at in self._drawn(tap, count, now):
                self._show(tap, run, begin + at, sent, now, failure=failure)

    def _wanted_by(self, run: RouterRun) -> Sequence[CallTap]:
        if run.was_answered or not (run.slot is None or isinstance(run.slot, Dispatch)):
            return ()
        taps = self._by_endpoint.get(run.endpoint, ())
        return [tap for tap in taps if tap.wish.wants(run.options.method, run.options.tenant)] if taps else ()

    def _drawn(self, tap: CallTap, count: int, now: float) -> Iterator[int]:
        """Which of so many calls are shown; those that are drawn beyond the room of the tap are counted."""
        share = tap.wish.share
        drawn = range(count) if share >= 1 else [at for at in range(count) if self._chance() < share]
        room = max(0, tap.room(now))
        for number, at in enumerate(drawn):
            # Payloads may have filled it meanwhile.
            if number >= room or (tap.wish.payload_bytes and tap.room(now) <= 0):
                tap.drop(len(drawn) - number)
                return
            yield at

    def _show(
        self,
        tap: CallTap,
        run: RouterRun,
        index: int,
        sent: Sent | None,
        now: float,
        *,
        failure: Failure | None = None,
        response_bytes: int | None = None,
        result: Payload | None = None,
        content_type: str = "",
    ) -> None:
        most, options = tap.wish.payload_bytes, run.options
        said = failure.metadata if failure is not None else {}
        payload = run.payloads[index] if most else None
        tap.add(
            SeenCall(
                ended_at=now,
                method=options.method or "__call__",
                backend=sent.replica.backend.name if sent is not None else said.get("backend", ""),
                replica_id=sent.replica.replica_id if sent is not None else said.get("replica_id", ""),
                request_bytes=nbytes_of(run.payloads, index, index + 1),
                response_bytes=response_bytes,
                queue_s=(sent.sent_at if sent is not None else now) - run.arrived,
                run_s=now - sent.sent_at if sent is not None else None,
                reason=None if failure is None else failure.reason,
                executed=Executed.YES if failure is None else failure.executed,
                attempt=run.attempt + 1,
                is_ordered=run.partition is not None,
                tenant=options.tenant,
                payload=_beginning(payload, most),
                result=_beginning(result, most),
                content_type=(content_type or options.content_type) if most else "",
            )
        )


def _beginning(payload: Payload | Announced | None, most: int) -> bytes | None:
    """Of what is here. A copy, so that the rest is not kept."""
    if payload is None or isinstance(payload, Announced):
        return None
    if not isinstance(payload, PayloadParts):
        return bytes(payload[:most])
    begun = bytearray()
    for part in payload.parts:
        begun += part[: most - len(begun)]
        if len(begun) >= most:
            break
    return bytes(begun)
