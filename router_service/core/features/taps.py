"""Taps: callers that watch the calls of one endpoint as they end.

Purpose: shows calls as they get their outcomes, at no cost while there is no tap. Calls are not changed.
Invariants: reservations, other operations on slots, copies for shadows, and results that were fetched a second time are
not shown. Calls and payload bytes that wait in a tap are bounded; those that do not fit, or arrive too quickly, are
counted.
Owner: the scheduler fills taps; the shell makes a tap and takes from it, on the same event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from router_service.core.calls import Dispatch
from router_service.core.commands import Step
from router_service.core.events import RouterEvent
from router_service.core.lifecycle.feature import Feature
from router_service.core.run_states import Earlier
from router_service.core.runs import RouterRun, Sent
from router_service.core.sampling import Chance
from slotmesh.calls.payload_block import nbytes_of
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.chunks import Announced, Payload, PayloadParts

MAX_WAITING_CALLS: Final = 10_000
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Of payloads and results."""
SECOND_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TapWish:
    """The calls and the details that a caller wants to see."""

    endpoint: str
    method: str = ""
    """Empty means all."""
    tenant: str | None = None
    """None means all."""
    share: float = 1.0
    """Of the calls, above 0."""
    calls_per_s: int = 1_000
    """At most."""
    payload_bytes: int = 0
    """Of each payload and result, at most; 0: none is shown."""

    def wants(self, method: str, tenant: str) -> bool:
        """Whether calls of the method and tenant are wanted."""
        return (not self.method or self.method == (method or "__call__")) and self.tenant in {None, tenant}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """A call that has ended."""

    ended_at: float
    """Monotonic seconds."""
    method: str
    backend: str
    """Empty where it had none."""
    replica_id: str
    """Empty where it was sent to none."""
    request_bytes: int
    response_bytes: int | None
    """None if it has no result."""
    queue_s: float
    run_s: float | None
    """None if it was sent to no replica."""
    reason: Reason | None
    """None if it ended well."""
    executed: Executed
    attempt: int
    """From 1."""
    is_ordered: bool
    tenant: str = ""
    payload: bytes | None = None
    """Its beginning, if it is wanted; likewise the result."""
    result: bytes | None = None
    content_type: str = ""


class CallTap:
    """Ended calls of one endpoint that the caller of the tap has not taken yet. Compared by identity."""

    def __init__(self, wish: TapWish) -> None:
        self.wish = wish
        self._waiting: list[SeenCall] = []
        self._waiting_bytes = 0
        self._dropped = 0
        self._second_began = float("-inf")
        self._of_second = 0
        """Calls that were let in since then."""

    def room(self, now: float) -> int:
        """How many calls may come now."""
        if now - self._second_began >= SECOND_S:
            self._second_began, self._of_second = now, 0
        if self._waiting_bytes >= MAX_WAITING_BYTES:
            return 0
        return min(self.wish.calls_per_s - self._of_second, MAX_WAITING_CALLS - len(self._waiting))

    def add(self, call: SeenCall) -> None:
        """There is room for it."""
        self._waiting.append(call)
        self._of_second += 1
        self._waiting_bytes += len(call.payload or b"") + len(call.result or b"")

    def drop(self, count: int) -> None:
        """Counts `count` calls that were drawn but do not fit."""
        self._dropped += count

    def take(self) -> tuple[list[SeenCall], int]:
        """What has come since the last time, and how many were dropped."""
        taken = self._waiting, self._dropped
        self._waiting, self._waiting_bytes, self._dropped = [], 0, 0
        return taken


class OpenTaps(Feature):
    """All open taps, by endpoint."""

    def __init__(self, chance: Chance) -> None:
        """`chance` draws uniformly from [0, 1)."""
        self._chance = chance
        self._by_endpoint: dict[str, list[CallTap]] = {}

    @property
    def under_way(self) -> Collection[object]:
        """The endpoints that callers watch."""
        return self._by_endpoint

    def opened(self, event: TapOpened, _step: Step) -> None:
        self._by_endpoint.setdefault(event.tap.wish.endpoint, []).append(event.tap)

    def closed(self, event: TapClosed, _step: Step) -> None:
        endpoint = event.tap.wish.endpoint
        left = [tap for tap in self._by_endpoint.get(endpoint, ()) if tap is not event.tap]
        if left:
            self._by_endpoint[endpoint] = left
        else:
            self._by_endpoint.pop(endpoint, None)

    def completed(
        self, sent: Sent, lo: int, count: int, payloads: Sequence[Payload] | None, content_type: str, step: Step
    ) -> None:
        """Shows calls that ended well."""
        now = step.now
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

    def failed(self, run: RouterRun, begin: int, count: int, failure: Failure, sent: Sent | None, step: Step) -> None:
        """Shows calls that failed."""
        now = step.now
        for tap in self._wanted_by(run):
            for at in self._drawn(tap, count, now):
                self._show(tap, run, begin + at, sent, now, failure=failure)

    def _wanted_by(self, run: RouterRun) -> Sequence[CallTap]:
        if run.earlier is Earlier.FETCHED or not (run.slot is None or isinstance(run.slot, Dispatch)):
            return ()
        taps = self._by_endpoint.get(run.endpoint, ())
        return [tap for tap in taps if tap.wish.wants(run.options.method, run.options.tenant)] if taps else ()

    def _drawn(self, tap: CallTap, count: int, now: float) -> Iterator[int]:
        """Which of `count` calls are shown; those that are drawn beyond the room of the tap are counted."""
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
        details = failure.metadata if failure is not None else {}
        payload = run.payloads[index] if most else None
        tap.add(
            SeenCall(
                ended_at=now,
                method=options.method or "__call__",
                backend=sent.replica.backend_name if sent is not None else details.get("backend", ""),
                replica_id=sent.replica.replica_id if sent is not None else details.get("replica_id", ""),
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


@dataclass(slots=True, eq=False)
class TapOpened(RouterEvent):
    """A caller watches the calls of an endpoint that end from now on."""

    tap: CallTap


@dataclass(slots=True, eq=False)
class TapClosed(RouterEvent):
    """The caller of the tap has left."""

    tap: CallTap
