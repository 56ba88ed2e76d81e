"""Bounds of the router, each at its edge: exactly as much as the bound passes, one more does not.

The bounds are written here as numbers: a constant that moves fails its line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from router_service.convert.runs import ids_of
from router_service.convert.sessions import session_of
from router_service.core.callers import Window
from router_service.core.events import CallsSubmitted, ChunkArrived
from router_service.core.limits.quotas import CallQuotas, SessionQuota
from router_service.core.rosters import SessionConnection
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from slotmesh.errors import Reason
from slotmesh.security.quotas import Quota, QuotaKind
from slotmesh.spec.tenants import TenantLimits
from slotmesh.streams.chunks import Announced
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.unit.router.slot_world import SlotWorld
from tests.unit.router.world import World
from tests.unit.router.world_callers import caller, options

MIB = 1024 * 1024
FIRST = 100
"""Ids of three digits: each call has three bytes."""


def _window_calls(count: int) -> bool:
    return Caller(Window(calls=10, bytes=100)).admit(range(1, count + 1), 0) is None


def _calls_of_one_batch(count: int) -> bool:
    """What a client may send at once: all of its window."""
    batch = router_service_pb2.CallBatch(first_call_id=1, payloads=[b""] * count)
    return ids_of(batch, 10) == range(1, count + 1)


def _opens(**fields: Any) -> bool:
    """Whether a session may be opened so, which goes on; its window has two calls."""
    opening = router_service_pb2.OpenStream(session_id="5e55" * 8, epoch=2, **fields)
    steps = session_of(opening, window_calls=2)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return isinstance(end.value, SessionConnection)


def _unanswered_ranges(count: int) -> bool:
    return _opens(unanswered=[call_pb2.IdRange(first=at, last=at) for at in range(1, 2 * count, 2)])


def _rosters_of_a_session(count: int) -> bool:
    return _opens(
        rosters=[router_service_pb2.RosterVersion(generation=f"{at:032x}", revision=1) for at in range(count)]
    )


def _window_bytes(size: int) -> bool:
    return Caller(Window(calls=10, bytes=100)).admit(range(1, 3), size) is None


def _window_bytes_in_steps(size: int) -> bool:
    each = Caller(Window(calls=10, bytes=100))
    assert each.admit(range(1, 3), 60) is None
    return each.admit(range(3, 5), size - 60) is None


def _window_beside_a_large_call(size: int) -> bool:
    each = Caller(Window(calls=10, bytes=100))
    assert each.admit([1], 1_000) is None
    return each.admit(range(2, 4), size) is None


def _known_caller(quotas: CallQuotas, calls: int, size: int) -> bool:
    """Over two streams of one caller, while another caller has as much."""
    other, *streams = (
        Caller(Window(calls=10**6, bytes=10**9), share=quotas.share_of(who)) for who in ("other", "one", "one")
    )
    assert other.admit(range(1, 5), 40) is None
    assert streams[0].admit(range(1, 3), 20) is None
    return streams[1].admit(range(1, calls - 1), size - 20) is None


def _calls_of_a_known_caller(count: int) -> bool:
    return _known_caller(CallQuotas(10, 10**9), count, 21)


def _bytes_of_a_known_caller(size: int) -> bool:
    return _known_caller(CallQuotas(10**6, 100), 4, size)


def _amount_of_a_quota(amount: int) -> bool:
    quota = Quota(QuotaKind.KEYS, 7, "x")
    for _ in range(amount - 1):
        quota.take("who")
    quota.take("other", 7)
    return quota.refusal("who") is None and not quota.is_full("who")


def _sessions(count: int) -> bool:
    sessions = SessionQuota(5)
    return [sessions.opened("who", f"s{at}", 0.0) for at in range(count)] == [None] * count


def _queued(count: int, **settings: Any) -> bool:
    """Whether as many calls of one caller wait; nothing takes them."""
    world = World({"b": ["r1", "r2", "r3"]}, links_at_once=False, settings=settings)
    world.submit(range(FIRST, FIRST + count))
    refused = [each for each, outcome in world.outcomes.items() if outcome == "QUEUE_FULL"]
    assert refused in ([], [FIRST + count - 1]), "the others wait"
    return not refused


def _max_queued_calls(count: int) -> bool:
    return _queued(count, max_queued_calls=40)


def _max_queued_bytes(count: int) -> bool:
    return _queued(count, max_queued_bytes=120)


def _permits(count: int) -> bool:
    world = World({"b": ["r"]}, slots=4)
    world.submit(range(FIRST, FIRST + count))
    return len(world.at_replica("r")) == count


def _prefetch(count: int) -> bool:
    world = World({"b": ["r"]}, slots=4)
    world.report("r", prefetch=2, others=1)
    world.submit(range(FIRST, FIRST + count))
    return len(world.at_replica("r")) == count


def _keyed_window(count: int) -> bool:
    world = World({"b": ["r", "s"]}, slots=4, owner=("r", 1))
    world.link("r", keyed_window=6)
    world.submit(range(FIRST, FIRST + count), ordering_key="k")
    return len(world.at_replica("r")) == count


def _wire_batch(count: int) -> bool:
    world = World({"b": ["r"]}, slots=100, settings={"max_wire_batch_size": 8})
    world.submit(range(FIRST, FIRST + count))
    return len(world.batches["r"]) == 1


def _slices_of_a_frame(count: int) -> bool:
    world = World({"b": ["r"]}, slots=1_000, lazy=True)
    for number in range(count):
        world.submit([FIRST + number], by=caller())
    world.cut("r")
    return not world.replicas["r"].outbox


def _tenant_in_flight(count: int) -> bool:
    world = World({"b": ["r"]}, slots=4, tenants=TenantLimits(max_in_flight=6))
    world.submit(range(FIRST, FIRST + count), tenant="acme")
    return not world.outcomes


def _tenant_burst(count: int) -> bool:
    world = World({"b": ["r"]}, slots=4, tenants=TenantLimits(max_calls_per_s=10, burst=5))
    world.submit(range(FIRST, FIRST + count), tenant="acme")
    return not world.outcomes


def _uploads_of_two(size: int) -> bool:
    world = World({"b": ["r"]}, links_at_once=False)
    world.scheduler = RouterScheduler(lambda: 0.5, max_upload_bytes=10 * MIB)
    world.push()
    for call_id, announced in ((1, 6 * MIB), (2, size - 6 * MIB)):
        world.step(CallsSubmitted(caller(), "e", [(options(), [call_id], [Announced(announced)])]))
    return not world.outcomes


def _constrained_reservations(count: int) -> bool:
    world = SlotWorld({"b": ["r"]}, slots=1)
    world.reserve()
    waiting = [world.reserve(replica_id="r") for _ in range(count)]
    return [world.reason(each) for each in waiting] == [None] * count


BOUNDS: dict[str, tuple[Callable[[int], bool], int]] = {
    "calls of a window": (_window_calls, 10),
    "calls of one batch": (_calls_of_one_batch, 10),
    "ranges of unanswered calls of a session": (_unanswered_ranges, 16_384),
    "rosters of a session": (_rosters_of_a_session, 64),
    "bytes of a window": (_window_bytes, 100),
    "bytes of a window, in steps": (_window_bytes_in_steps, 100),
    "bytes of a window beside a large call": (_window_beside_a_large_call, 100),
    "calls of a known caller": (_calls_of_a_known_caller, 10),
    "bytes of a known caller": (_bytes_of_a_known_caller, 100),
    "amount of a quota": (_amount_of_a_quota, 7),
    "sessions of a caller": (_sessions, 5),
    "max_queued_calls": (_max_queued_calls, 40),
    "max_queued_bytes": (_max_queued_bytes, 40),
    "permits of a replica": (_permits, 4),
    "permits and prefetch, without those of others": (_prefetch, 5),
    "keyed window": (_keyed_window, 6),
    "max_wire_batch_size": (_wire_batch, 8),
    "slices of a frame": (_slices_of_a_frame, 256),
    "max_in_flight of a tenant": (_tenant_in_flight, 6),
    "burst of a tenant": (_tenant_burst, 5),
    "bytes of two uploads": (_uploads_of_two, 10 * MIB),
    "reservations that name their replica": (_constrained_reservations, 256),
}


@pytest.mark.parametrize(("admits", "most"), BOUNDS.values(), ids=BOUNDS)
def test_exactly_the_bound_passes_and_one_more_does_not(admits: Callable[[int], bool], most: int) -> None:
    assert admits(most - 1)
    assert admits(most)
    assert not admits(most + 1)


# -- moments ---------------------------------------------------------------------------------------------------------


def _deadline_in_the_queue(now: float) -> bool:
    world = World({"b": ["r"]}, links_at_once=False)
    world.submit([1, 2, 3], timeout_s=5.0)
    world.at(now)
    return world.reasons([1, 2, 3] if world.outcomes else []) == {Reason.DEADLINE_IN_QUEUE}


def _deadline_at_the_replica(now: float) -> bool:
    world = World({"b": ["r"]})
    world.submit([1, 2, 3], timeout_s=5.0)
    world.at(now)
    return world.reasons([1, 2, 3] if world.outcomes else []) == {Reason.DEADLINE_RUNNING}


def _time_in_the_queue(now: float) -> bool:
    world = World({"b": ["r"]}, links_at_once=False, settings={"max_queue_time_s": 4.0})
    world.submit([1, 2, 3])
    world.at(now)
    return world.reasons([1, 2, 3] if world.outcomes else []) == {Reason.QUEUE_TIMEOUT}


def _replicas_wait_for_clients(now: float) -> bool:
    world = World({"b": ["r1"]}, slots=1)
    world.connect()
    world.backends["b"] += ("r2", "r3")
    world.push()
    world.at(now)
    world.submit(range(1, 4))
    return bool(world.got("r2")) and bool(world.got("r3"))


def _calls_wait_for_an_acknowledgement(now: float) -> bool:
    world = World({"b": ["r1"]})
    client = world.connect(acknowledges=False)
    world.submit([1, 2, 3], by=client)
    world.at(now)
    return bool(world.outcomes)


def _replicas_are_asked(now: float) -> bool:
    world = World({"b": ["r1", "r2"]})
    client = world.connect(2, (1, 3))
    world.resend([1, 2, 3], by=client)
    world.at(now)
    return bool(world.outcomes)


def _upload_stalls(now: float) -> bool:
    world, stalled, going, also_stalled = World({"b": ["r"]}), caller(), caller(), caller()
    for call_id, by in ((1, stalled), (2, going), (3, stalled), (4, also_stalled)):
        world.step(CallsSubmitted(by, "e", [(options(), [call_id], [Announced(MIB)])]))
    world.at(1.0)
    world.step(ChunkArrived(going, 2, 100))
    world.at(now)
    assert 2 not in world.outcomes
    return world.outcomes.keys() == {1, 3, 4}


def _left_session_is_forgotten(now: float) -> bool:
    sessions = SessionQuota(2)
    for name in ("s1", "s2"):
        assert sessions.opened("who", name, 0.0) is None
        sessions.ended("who", name, 0.0, in_order=False)
    return sessions.opened("who", "s3", now) is None


def _asked_lane_gives_up(now: float) -> bool:
    world = World({"b": ["r"]}, owner=("r", 1))
    client = world.connect()
    world.submit([1, 2, 3], by=client, ordering_key="k", stop_generation=1)
    world.cancel((1, 3), by=client)
    world.at(now)
    return world.outcomes.keys() == {1, 2, 3}


MOMENTS: dict[str, tuple[Callable[[float], bool], float]] = {
    "deadline of calls that wait": (_deadline_in_the_queue, 5.0),
    "deadline of calls at a replica": (_deadline_at_the_replica, 5.0),
    "max_queue_time": (_time_in_the_queue, 4.0),
    "replicas that join wait for clients": (_replicas_wait_for_clients, 0.25),
    "calls wait for an acknowledgement": (_calls_wait_for_an_acknowledgement, 30.0),
    "replicas are asked for calls that were sent again": (_replicas_are_asked, 5.0),
    "an upload stalls": (_upload_stalls, 30.0),
    "a session that was left counts": (_left_session_is_forgotten, 60.0),
    "a replica is asked where a lane stops": (_asked_lane_gives_up, 0.25),
}


@pytest.mark.parametrize(("is_over", "moment"), MOMENTS.values(), ids=MOMENTS)
def test_a_time_is_over_at_exactly_its_end_and_not_before(is_over: Callable[[float], bool], moment: float) -> None:
    assert not is_over(moment - 0.001)
    assert is_over(moment)
