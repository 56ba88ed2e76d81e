"""What somebody who taps an endpoint sees of its calls, and what not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router_service.convert.live_calls import tap_wish_of
from router_service.core.features.taps import MAX_WAITING_BYTES, CallTap, SeenCall, TapClosed, TapOpened, TapWish
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.v1 import tap_service_pb2 as pb
from tests.unit.router.world import World

WISH = TapWish(endpoint="e")


def tapped(world: World, wish: TapWish = WISH) -> CallTap:
    tap = CallTap(wish)
    world.scheduler.step(TapOpened(tap), world.now)
    return tap


def seen(tap: CallTap) -> list[SeenCall]:
    return tap.take()[0]


def test_each_call_that_ends_is_seen_once_with_its_times() -> None:
    world = World({"b": ["r"]}, slots=1)
    tap = tapped(world)
    world.now = 1.0
    world.submit([1, 2])
    world.now = 1.5
    world.complete("r", 1)
    world.now = 1.75
    world.complete("r", 2)
    first, second = seen(tap)
    assert (first.queue_s, first.run_s, second.queue_s, second.run_s) == (0.0, 0.5, 0.5, 0.25)
    assert (first.ended_at, first.backend, first.replica_id, first.reason) == (1.5, "b", "r", None)
    assert (first.request_bytes, first.attempt, first.is_ordered) == (1, 1, False)
    assert first.response_bytes is not None
    assert (first.payload, first.result) == (None, None)
    assert seen(tap) == []


def test_failures_say_why_and_where() -> None:
    world = World({"b": ["r"]}, slots=1)
    tap = tapped(world)
    world.submit([1, 2], timeout_s=5.0)
    world.fail("r", 1)
    world.at(5.0)
    failed, late = seen(tap)
    assert (failed.reason, failed.executed, failed.replica_id) == (Reason.HANDLER_ERROR, Executed.YES, "r")
    assert (late.reason, late.run_s, late.response_bytes) == (Reason.DEADLINE_RUNNING, 5.0, None)


def test_what_never_left_the_queue_was_at_no_replica() -> None:
    world = World({"b": ["r"]}, slots=1)
    tap = tapped(world)
    world.submit([1])
    world.submit([2], timeout_s=5.0)
    world.at(5.0)
    (late,) = seen(tap)
    assert (late.reason, late.queue_s, late.run_s, late.replica_id) == (Reason.DEADLINE_IN_QUEUE, 5.0, None, "")


def test_a_call_whose_replica_was_lost_is_seen_with_it() -> None:
    world = World({"b": ["r"]}, slots=4)
    tap = tapped(world)
    world.submit([1])
    world.now = 2.0
    world.lose("r")
    (lost,) = seen(tap)
    assert (lost.reason, lost.replica_id, lost.run_s, lost.executed) == (
        Reason.REPLICA_LOST,
        "r",
        2.0,
        Executed.UNKNOWN,
    )


def test_ordered_calls_are_marked() -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    tap = tapped(world)
    world.submit([1], ordering_key="k")
    world.complete("r", 1)
    assert [call.is_ordered for call in seen(tap)] == [True]


def test_others_are_not_seen() -> None:
    world = World({"b": ["r"], "s": ["q"]}, slots=9, shadows={"s": 1.0})
    other, method = tapped(world, TapWish(endpoint="f")), tapped(world, replace(WISH, method="other"))
    tap = tapped(world)
    world.submit([1])
    world.complete("r", 1)
    assert (len(seen(tap)), seen(other), seen(method)) == (1, [], [])


def test_a_tap_that_was_closed_gets_nothing_and_others_go_on() -> None:
    world = World({"b": ["r"]}, slots=9)
    one, another = tapped(world), tapped(world)
    world.scheduler.step(TapClosed(one), world.now)
    world.submit([1])
    world.complete("r", 1)
    assert (len(seen(one)), len(seen(another))) == (0, 1)
    world.scheduler.step(TapClosed(another), world.now)
    world.submit([2])
    world.complete("r", 2)
    assert seen(another) == []
    assert not world.scheduler._parts.taps.under_way


def test_too_many_a_second_are_counted() -> None:
    world = World({"b": ["r"]}, slots=50)
    tap = tapped(world, replace(WISH, calls_per_s=10))
    world.submit(range(1, 26))
    world.complete("r", *range(1, 26))
    calls, dropped = tap.take()
    assert (len(calls), dropped) == (10, 15)
    world.now = 1.0
    world.submit(range(30, 35))
    world.complete("r", *range(30, 35))
    assert [len(tap.take()[0]), tap.take()[1]] == [5, 0]


def test_a_share_is_drawn_call_by_call() -> None:
    world = World({"b": ["r"]}, slots=2_000)
    tap = tapped(world, replace(WISH, share=0.1, calls_per_s=10_000))
    world.submit(range(1, 2_001))
    world.complete("r", *range(1, 2_001))
    calls, dropped = tap.take()
    assert 120 < len(calls) < 280
    assert dropped == 0


def test_payloads_are_cut_and_bounded() -> None:
    world = World({"b": ["r"]}, slots=4)
    tap = tapped(world, replace(WISH, payload_bytes=1))
    world.submit([10])
    world.complete("r", 10)
    (call,) = seen(tap)
    assert (call.payload, call.request_bytes) == (b"1", 2)
    assert call.result is not None
    assert len(call.result) == 1
    tap.add(replace(call, payload=bytes(MAX_WAITING_BYTES)))
    assert tap.room(world.now) == 0
    world.submit([11])
    world.complete("r", 11)
    assert tap.take()[1] == 1
    assert tap.room(world.now) > 0


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.TapCallsRequest(), "endpoint"),
        (pb.TapCallsRequest(endpoint="e", sample_rate=1.5), "sample_rate"),
        (pb.TapCallsRequest(endpoint="e", sample_rate=float("nan")), "sample_rate"),
        (pb.TapCallsRequest(endpoint="e", sample_rate=-0.1), "sample_rate"),
        (pb.TapCallsRequest(endpoint="e", max_calls_per_s=10_001), "max_calls_per_s"),
        (pb.TapCallsRequest(endpoint="e", max_payload_bytes=-1), "max_payload_bytes"),
        (pb.TapCallsRequest(endpoint="e", with_payloads=True), "with_payloads"),
    ],
)
def test_what_is_refused_names_its_field(request_: pb.TapCallsRequest, field: str) -> None:
    refused = tap_wish_of(request_, allows_payloads=False)
    assert isinstance(refused, Failure)
    assert refused.metadata["field"] == field


def test_what_is_not_said_has_defaults() -> None:
    wish = tap_wish_of(pb.TapCallsRequest(endpoint="e"), allows_payloads=True)
    assert wish == TapWish(endpoint="e", share=1.0, calls_per_s=1_000, payload_bytes=0)
    wish = tap_wish_of(pb.TapCallsRequest(endpoint="e", with_payloads=True), allows_payloads=True)
    assert isinstance(wish, TapWish)
    assert wish.payload_bytes == 4_096
