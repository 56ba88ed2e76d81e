"""Every kind of waiting or sent call with every ending: what the client's buffer, windows and tenants get back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from slotmesh.client.calls.buffer import BufferShare, BufferShares, ClientBuffer
from slotmesh.client.calls.outbox import CallOutbox
from slotmesh.client.calls.queues import CallQueue, LaneGroups, StopGenerations, TenantWindow
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.errors import Failure, Reason
from tests.unit.client.parts import NONE_LARGE, Sink, make_call, make_map_part, make_part, make_spec

SIZES: Final = (3, 5, 7, 11)
"""Payload bytes of the four calls of each kind."""
PLENTY: Final = 10**9


# -- what waits ------------------------------------------------------------------------------------------------------


class Waiting:
    """Four calls that wait, beside four of another tenant that stay."""

    def __init__(self, kind: str) -> None:
        self.buffer = ClientBuffer(1_000, 100_000)
        self.free = self.buffer.free_calls, self.buffer.free_bytes
        self.outbox = CallOutbox(BufferShares(self.buffer))
        self.sinks: list[Any] = []
        payloads = [b"x" * size for size in SIZES]
        options: dict[str, Any] = {"timeout_s": 5.0}
        if kind == "of a tenant":
            options["tenant"] = "acme"
        if kind == "a map":
            gather: Any = Sink()
            self.sinks = [gather]
            spec = make_spec(**options)
            assert self.outbox.share_of(spec).take(len(SIZES), sum(SIZES))
            self.outbox.add_map(spec, payloads, gather, 0)
        elif kind == "lanes in a column":
            groups = LaneGroups()
            specs = [make_spec(queue=CallQueue(groups), ordering_key=f"k{at}", **options) for at in range(4)]
            self.sinks = [make_call(self.outbox, each, payload) for each, payload in zip(specs, payloads, strict=True)]
        else:
            spec = make_spec(**options)
            self.sinks = [make_call(self.outbox, spec, payload) for payload in payloads]
        self.share: BufferShare = self.outbox.share_of(make_spec(**options))
        self.outbox.seal(0.0)

    def is_given_back(self) -> bool:
        return (self.share.calls, self.share.nbytes) == (0, 0) and self.free == (
            self.buffer.free_calls,
            self.buffer.free_bytes,
        )


def _cancelled(waiting: Waiting) -> None:
    for each in waiting.sinks:
        each.cancelled = True


def _sent(waiting: Waiting) -> None:
    assert sum(part.count for part in waiting.outbox.take(PLENTY, PLENTY, NONE_LARGE)) == 4


def _sent_one_by_one(waiting: Waiting) -> None:
    for _ in range(4):
        assert sum(part.count for part in waiting.outbox.take(1, PLENTY, NONE_LARGE)) == 1


def _cancelled_then_taken(waiting: Waiting) -> None:
    _cancelled(waiting)
    assert waiting.outbox.take(PLENTY, PLENTY, NONE_LARGE) == []


def _cancelled_then_dropped(waiting: Waiting) -> None:
    _cancelled(waiting)
    waiting.outbox.drop_cancelled()


def _partly_sent_then_cancelled(waiting: Waiting) -> None:
    waiting.outbox.take(2, PLENTY, NONE_LARGE)
    _cancelled(waiting)
    waiting.outbox.drop_cancelled()


def _never_sent(waiting: Waiting) -> None:
    assert sum(part.count for part in waiting.outbox.drain()) == 4


def _overdue(waiting: Waiting) -> None:
    overdue, behind = waiting.outbox.take_overdue(5.0)
    assert (sum(part.count for part in overdue), behind) == (4, [])


def _too_large(waiting: Waiting) -> None:
    assert sum(part.count for part in waiting.outbox.take_oversize(2)) == 4


def _too_large_in_part(waiting: Waiting) -> None:
    assert sorted(len(payload) for part in waiting.outbox.take_oversize(5) for payload in part.payloads) == [7, 11]
    assert (waiting.share.calls, waiting.share.nbytes) == (2, 8)
    assert sum(part.count for part in waiting.outbox.take(PLENTY, PLENTY, NONE_LARGE)) == 2


ENDINGS = {
    "sent": _sent,
    "sent one by one": _sent_one_by_one,
    "cancelled, then passed over": _cancelled_then_taken,
    "cancelled, then dropped": _cancelled_then_dropped,
    "sent in part, then cancelled": _partly_sent_then_cancelled,
    "never sent": _never_sent,
    "overdue": _overdue,
    "too large": _too_large,
    "some too large": _too_large_in_part,
}


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("kind", ["single calls", "of a tenant", "a map", "lanes in a column"])
def test_the_buffer_gets_back_what_waited(kind: str, end: Callable[[Waiting], None]) -> None:
    waiting = Waiting(kind)
    assert (waiting.share.calls, waiting.share.nbytes) == (4, 26)
    end(waiting)
    assert waiting.is_given_back(), (waiting.share.calls, waiting.share.nbytes)


@pytest.mark.parametrize("full", ["calls", "bytes"])
def test_a_share_takes_one_large_call_while_anything_is_free_and_none_when_nothing_is(full: str) -> None:
    """A bound of 8 has an eighth more, so that 9 are all that there is."""
    buffer = ClientBuffer(8, PLENTY) if full == "calls" else ClientBuffer(PLENTY, 8)
    others = [BufferShare(buffer) for _ in range(9)]
    taken = 0
    for share in others:
        while share.take(1, 0 if full == "calls" else 1):
            taken += 1
    assert taken == 9
    assert (buffer.free_calls if full == "calls" else buffer.free_bytes) == 0
    newcomer = BufferShare(buffer)
    assert not newcomer.take(1, 1)
    others[0].give(1, 0 if full == "calls" else 1)
    assert newcomer.take(1, 1_000), "one call of any size, as something is free"
    assert not newcomer.take(1, 1)


# -- what was sent ---------------------------------------------------------------------------------------------------


class Sent:
    """Parts of two tenants and of none, some of which stream their values: eight calls and twenty-four bytes each."""

    def __init__(self) -> None:
        self.pending = PendingCalls()
        self.parts = [make_part(1, 2, 3, spec=make_spec(tenant=tenant)) for tenant in ("", "a", "b")]
        self.parts += [make_part(4, 5, 6, spec=make_spec(tenant=tenant, streaming=True)) for tenant in ("a", "b", "")]
        for part in self.parts:
            self.pending.add(part)
        assert windows(self.pending) == {"": (6, 21), "a": (6, 21), "b": (6, 21)}


def windows(pending: PendingCalls) -> dict[str, tuple[int, int]]:
    held = {tenant: (each.calls, each.nbytes) for tenant, each in pending.by_tenant().items()}
    assert sum(calls for calls, _ in held.values()) == pending.calls
    assert sum(nbytes for _, nbytes in held.values()) == pending.nbytes
    return held


def test_what_is_handed_over_counts_where_it_goes_and_no_longer_where_it_was() -> None:
    sent = Sent()
    list(sent.pending.settle([2, 5, 8]))
    successor = sent.pending.hand_over()
    assert windows(sent.pending) == {"": (3, 15), "a": (3, 15), "b": (3, 15)}
    assert windows(successor) == {"": (2, 4), "a": (2, 4), "b": (2, 4)}
    list(successor.settle([1, 3, 4, 6, 7, 9]))
    assert windows(successor) == {"": (0, 0)}
    list(sent.pending.drain_streaming())
    assert windows(sent.pending) == {"": (0, 0)}


@pytest.mark.parametrize(
    "end",
    [
        lambda pending: list(pending.settle(range(1, 19))),
        lambda pending: [list(pending.settle([each])) for each in reversed(range(1, 19))],
        lambda pending: list(pending.settle_scattered(range(1, 19))),
        lambda pending: [list(pending.settle_scattered(range(first, 19, 2))) for first in (1, 2)],
        lambda pending: list(pending.drain()),
        lambda pending: (list(pending.settle([3, 11])), list(pending.drain())),
        lambda pending: (list(pending.drain_streaming()), list(pending.drain())),
    ],
    ids=["at once", "one by one", "as places", "every other", "drained", "some, then drained", "streaming ones first"],
)
def test_windows_and_tenants_get_back_what_was_sent(end: Callable[[PendingCalls], Any]) -> None:
    sent = Sent()
    end(sent.pending)
    assert windows(sent.pending) == {"": (0, 0)}
    assert sent.pending.strays == 0
    assert sent.pending.unanswered() == []
    assert not sent.pending.has_wanted


def test_cancelled_calls_of_each_kind_are_given_back_when_they_are_dropped() -> None:
    pending = PendingCalls()
    together = make_map_part(1, 2, 3)
    single = make_part(4, 5, 6, spec=make_spec(tenant="a"))
    for part in (together, single):
        pending.add(part)
    together.gather.cancelled = True  # type: ignore[union-attr]  # a Sink
    single.sinks[0].cancelled = single.sinks[2].cancelled = True
    list(pending.drain_unwanted())
    assert pending.by_tenant() == {"": TenantWindow(0, 0), "a": TenantWindow(1, 5)}


# -- lanes that stop -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(5, 7, 9), (9, 7, 5), (7, 5, 9), (7, 9, 5)])
def test_of_several_failures_of_a_generation_the_earliest_call_counts(order: tuple[int, ...]) -> None:
    told: list[int] = []
    queue: CallQueue[Any] = CallQueue()
    stop = StopGenerations(lambda _queue, generation: told.append(generation)).stop_of(queue, "k")
    for call_id in order:
        stop.fail(queue, 1, call_id, Failure(reason=Reason.HANDLER_ERROR, message="no"))
    assert told == [1]
    assert [call_id for call_id in range(1, 11) if stop.is_after_failure(1, call_id)] == [6, 7, 8, 9, 10]
    assert not stop.is_after_failure(2, 10), "the next generation goes on"
