"""Shares of callers: counted with the windows of their streams, and given back in every way a call or stream ends."""

from __future__ import annotations

from router_service.core.callers import Window
from router_service.core.limits.quotas import MAX_KEYS, CallQuotas
from router_service.core.runs import Caller
from slotmesh.errors import Reason

WHO = "client/a"
WINDOW = Window(calls=100, bytes=1_000)


def test_all_streams_of_a_caller_share_one_quota() -> None:
    quotas = CallQuotas(max_calls=150, max_bytes=10_000)
    first, second = (Caller(WINDOW, share=quotas.share_of(WHO)) for _ in range(2))
    other = Caller(WINDOW, share=quotas.share_of("client/b"))
    assert first.admit(range(1, 101), 0) is None
    failure = second.admit(range(1, 101), 0)
    assert failure is not None
    assert failure.reason is Reason.QUOTA_EXCEEDED
    assert second.calls == second.last_id == 0
    assert other.admit(range(1, 101), 0) is None
    first.released(50, 0)
    assert second.admit(range(1, 101), 0) is None
    assert quotas.calls.held == {WHO: 150, "client/b": 100}


def test_bytes_are_counted_apart() -> None:
    quotas = CallQuotas(max_calls=1_000, max_bytes=1_500)
    first, second = (Caller(WINDOW, share=quotas.share_of(WHO)) for _ in range(2))
    assert first.admit([1], 1_000) is None
    failure = second.admit([1], 1_000)
    assert failure is not None
    assert failure.metadata["quota"] == "bytes"
    first.released(1, 1_000)
    assert second.admit([1], 1_000) is None


def test_a_stream_that_ends_gives_all_back_once() -> None:
    quotas = CallQuotas()
    caller = Caller(WINDOW, share=quotas.share_of(WHO))
    assert caller.admit(range(1, 11), 100) is None
    caller.released(3, 30)
    caller.stops.stop("key", 1, 5)
    caller.leave()
    caller.leave()
    caller.released(7, 70)
    assert not any(each.held for each in (quotas.calls, quotas.bytes, quotas.keys))


def test_keys_that_have_stopped_are_bounded_over_all_streams() -> None:
    quotas = CallQuotas()
    first, second = (Caller(WINDOW, share=quotas.share_of(WHO)) for _ in range(2))
    for number in range(MAX_KEYS):
        assert first.stops.stop(f"k{number}", 1, 1)
    assert second.stops.stop("late", 1, 1), "it has stopped, though it is not remembered here"
    assert not second.stops.has_stopped("late", 1, 2)
    assert first.stops.stop("later", 1, 1)
    assert first.stops.has_stopped("later", 1, 2)
    assert not first.stops.has_stopped("k0", 1, 2), "the oldest was forgotten for it"
    assert quotas.keys.held == {WHO: MAX_KEYS}
    first.leave()
    assert second.stops.stop("late", 1, 1)
    assert second.stops.has_stopped("late", 1, 2)


def test_who_is_not_known_has_no_share() -> None:
    assert CallQuotas().share_of("") is None
