"""Leased slots at the replica, by frames of Execute and by its own SlotService: what holds at both doors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
import pytest_asyncio

from replica_service.core.slots import SlotTable
from slotmesh.codec import JSON
from slotmesh.errors import Executed
from slotmesh.slots.token import format_token, parse_token
from tests.contract.slot_handlers import Handler
from tests.fakes.clock import FakeClock
from tests.support.replicas import RunningReplica, running_replica
from tests.support.slot_doors import Door, Failed, FramesDoor, OpenDoor, Slot, by_frames, directly
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

HANDLER = "tests.contract.slot_handlers:Handler"
NO, UNKNOWN, YES = Executed.NO, Executed.UNKNOWN, Executed.YES
START = 1_000.0


@pytest.fixture(params=[by_frames, directly])
def open_door(request: pytest.FixtureRequest) -> OpenDoor:
    made: OpenDoor = request.param
    return made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest_asyncio.fixture
async def replica(clock: FakeClock) -> AsyncIterator[RunningReplica]:
    async with running_replica(HANDLER, clock=clock, replica_id="r-1", graceful_timeout="200ms") as running:
        yield running
        handler_of(running).gate.set()


@pytest_asyncio.fixture
async def door(replica: RunningReplica, open_door: OpenDoor) -> AsyncIterator[Door]:
    async with open_door(replica) as opened:
        yield opened


@pytest_asyncio.fixture
async def live() -> AsyncIterator[RunningReplica]:
    """A replica whose time passes by itself."""
    async with running_replica(HANDLER, replica_id="r-1", graceful_timeout="5s") as running:
        yield running
        handler_of(running).gate.set()


def handler_of(replica: RunningReplica) -> Handler:
    handler = replica.handler
    assert isinstance(handler, Handler)
    return handler


def table_of(replica: RunningReplica) -> SlotTable:
    return replica.engine.scheduler.slots


async def all_free(replica: RunningReplica) -> None:
    await wait_until(lambda: replica.engine.scheduler.is_idle, what="all permits free")
    assert table_of(replica).reserved == 0


async def read_all(values: AsyncIterator[bytes]) -> list[bytes]:
    return [value async for value in values]


async def told_by(operation: Awaitable[object]) -> tuple[str, Executed]:
    with pytest.raises(Failed) as caught:
        await operation
    return caught.value.told


# -- the happy path ----------------------------------------------------------------------------------------------------


async def test_reserve_and_dispatch(replica: RunningReplica, door: Door, clock: FakeClock) -> None:
    slot = await door.reserve()
    assert (slot.backend, slot.replica_id, slot.replica_address) == ("Handler", "r-1", replica.address)
    assert (slot.ongoing, slot.ttl.ToNanoseconds()) == (1, 10 * 10**9)
    assert slot.expire_time.ToNanoseconds() / 1e9 == pytest.approx(clock.time_of_day() + 10)
    assert (table_of(replica).reserved, replica.engine.scheduler.in_use) == (1, 1)
    assert await door.dispatch(slot.token, b"hello") == b"hello"
    await all_free(replica)


@pytest.mark.parametrize(
    ("method", "payload", "content_type", "result"),
    [("thread", b"t", "", b"t"), ("upper", b"up", "", b"UP"), ("greet", b'["you"]', JSON, b'"hello, you"')],
)
async def test_each_kind_of_method_runs_in_a_slot(
    replica: RunningReplica, door: Door, method: str, payload: bytes, content_type: str, result: bytes
) -> None:
    slot = await door.reserve()
    assert await door.dispatch(slot.token, payload, method=method, content_type=content_type) == result
    await all_free(replica)


async def test_the_error_of_a_call_reaches_the_caller_and_frees_the_slot(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    with pytest.raises(Failed, match="ValueError: no good") as caught:
        await door.dispatch(slot.token, b"no good", method="fail")
    assert caught.value.told == ("HANDLER_ERROR", YES)
    await all_free(replica)


async def test_a_method_that_is_not_there_uses_the_slot_up(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    assert await told_by(door.dispatch(slot.token, method="nowhere")) == ("METHOD_NOT_FOUND", NO)
    assert await told_by(door.dispatch(slot.token)) == ("SLOT_USED", NO)
    await all_free(replica)


async def test_a_dispatch_is_taken_by_a_full_replica(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    async with replica.router("router-2") as crowd:
        await crowd.send(crowd.run([b"a", b"b"], method="wait"))
        await wait_until(lambda: replica.engine.scheduler.waiting == 1)
        await crowd.send(crowd.run([b"c"]))
        await wait_until(lambda: crowd.refused)
        assert await door.dispatch(slot.token) == b"x"
        await wait_until(lambda: handler_of(replica).started == [b"a", b"b"], what="the freed permit is used")


async def test_a_dispatch_is_taken_where_there_are_fewer_permits_by_now(replica: RunningReplica, door: Door) -> None:
    slots = [await door.reserve() for _ in range(2)]
    replica.engine.configure(max_ongoing=1, prefetch=0)
    assert await asyncio.gather(*(door.dispatch(slot.token) for slot in slots)) == [b"x", b"x"]
    await all_free(replica)


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_a_renewed_lease_lasts_from_then_on(replica: RunningReplica, door: Door, clock: FakeClock) -> None:
    slot = await door.reserve(ttl_s=5)
    clock.advance(4.999)
    renewed = await door.renew(slot.token, 20)
    assert (renewed.token, renewed.ttl.seconds, renewed.ongoing) == (slot.token, 20, 1)
    clock.advance(19.999)
    assert await door.dispatch(slot.token) == b"x"
    await all_free(replica)


@pytest.mark.parametrize(
    ("late_s", "outcome"), [(-0.001, b"x"), (0.0, ("SLOT_EXPIRED", NO)), (0.001, ("SLOT_EXPIRED", NO))]
)
async def test_a_lease_ends_to_the_moment(
    replica: RunningReplica, door: Door, clock: FakeClock, late_s: float, outcome: object
) -> None:
    slot = await door.reserve(ttl_s=2)
    clock.advance(2 + late_s)
    dispatching = door.dispatch(slot.token)
    assert (await dispatching if late_s < 0 else await told_by(dispatching)) == outcome
    await all_free(replica)
    assert (table_of(replica).expired, table_of(replica).dispatched) == (int(late_s >= 0), int(late_s < 0))


async def test_a_lease_that_ends_frees_the_slot_by_itself(live: RunningReplica, open_door: OpenDoor) -> None:
    async with open_door(live) as door:
        slots = [await door.reserve(ttl_s=0.05) for _ in range(2)]
        assert (await door.reserve()).ongoing <= 2, "it waited for one of them"
        assert await told_by(door.dispatch(slots[0].token)) == ("SLOT_EXPIRED", NO)
        await wait_until(lambda: table_of(live).reserved == 1)


async def test_a_lease_that_was_shortened_ends_by_itself(live: RunningReplica, open_door: OpenDoor) -> None:
    async with open_door(live) as door:
        slot = await door.reserve(ttl_s=300)
        assert (await door.renew(slot.token, 0.05)).ttl.seconds == 0
        await all_free(live)


async def test_no_lease_lasts_longer_than_five_minutes_in_all(
    replica: RunningReplica, door: Door, clock: FakeClock
) -> None:
    slot = await door.reserve(ttl_s=300)
    clock.advance(200)
    assert (await door.renew(slot.token, 300)).ttl.seconds == 100
    clock.advance(99)
    assert (await door.renew(slot.token)).ttl.seconds == 1
    clock.advance(1)
    assert await told_by(door.renew(slot.token)) == ("SLOT_EXPIRED", NO)
    await all_free(replica)


@pytest.mark.parametrize("ttl_s", [0, -1, 300.000000001])
async def test_a_lease_has_a_length(replica: RunningReplica, door: Door, ttl_s: float) -> None:
    assert await told_by(door.reserve(ttl_s=ttl_s)) == ("BAD_REQUEST", NO)
    slot = await door.reserve()
    assert await told_by(door.renew(slot.token, ttl_s)) == ("BAD_REQUEST", NO)
    assert await door.dispatch(slot.token) == b"x"
    await all_free(replica)


async def test_what_has_ended_cannot_be_renewed(replica: RunningReplica, door: Door, clock: FakeClock) -> None:
    used, back = await door.reserve(), await door.reserve()
    await door.dispatch(used.token)
    await door.release(back.token)
    late = await door.reserve(ttl_s=1)
    clock.advance(1)
    told = [await told_by(door.renew(slot.token)) for slot in (used, back, late)]
    assert told == [("SLOT_USED", NO), ("SLOT_UNKNOWN", NO), ("SLOT_EXPIRED", NO)]
    await all_free(replica)


# -- giving back -------------------------------------------------------------------------------------------------------


async def test_release_is_idempotent_and_says_how_loaded_the_replica_is(replica: RunningReplica, door: Door) -> None:
    slot, other = await door.reserve(), await door.reserve()
    assert [await door.release(slot.token) for _ in range(2)] == [(1, 2), (1, 2)]
    assert await told_by(door.dispatch(slot.token)) == ("SLOT_UNKNOWN", NO)
    assert await door.release(other.token) == (0, 2)
    assert (table_of(replica).released, table_of(replica).reserved) == (2, 0)


async def test_release_after_a_dispatch_changes_nothing(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    dispatching = asyncio.ensure_future(door.dispatch(slot.token, method="wait"))
    await wait_until(lambda: handler_of(replica).started)
    assert await door.release(slot.token) == (1, 2)
    handler_of(replica).gate.set()
    assert await dispatching == b"x"
    assert await door.release(slot.token) == (0, 2)
    assert table_of(replica).released == 0


# -- tokens ------------------------------------------------------------------------------------------------------------


async def test_a_slot_is_used_once(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    assert await door.dispatch(slot.token) == b"x"
    assert await told_by(door.dispatch(slot.token)) == ("SLOT_USED", NO)
    await all_free(replica)


async def test_of_dispatches_at_the_same_instant_one_wins(replica: RunningReplica, door: Door) -> None:
    async with by_frames(replica) as frames, directly(replica) as direct:
        for _ in range(20):
            slot = await door.reserve()
            told = await asyncio.gather(
                *(each.dispatch(slot.token) for each in (frames, direct, frames, direct)), return_exceptions=True
            )
            assert sorted(each.told[0] if isinstance(each, Failed) else repr(each) for each in told) == (
                ["SLOT_USED"] * 3 + ["b'x'"]
            )
    await all_free(replica)
    assert table_of(replica).dispatched == 20


async def test_tokens_that_are_none_open_nothing(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    parsed = parse_token(slot.token)
    assert parsed is not None
    flipped = [slot.token[:at] + chr(ord(slot.token[at]) ^ 1) + slot.token[at + 1 :] for at in range(len(slot.token))]
    for token in [*flipped[::7], slot.token[:-1], slot.token + "A", "token", "é"]:
        for operation in (door.dispatch(token), door.renew(token), door.release(token)):
            with pytest.raises(Failed, match="not a slot token") as caught:
                await operation
            assert caught.value.told == ("SLOT_UNKNOWN", NO)
            assert token[:5] not in str(caught.value) or len(token) <= 5, "no failure shows more of a token"
    assert await told_by(door.dispatch("")) == ("BAD_REQUEST", NO)
    assert await door.dispatch(slot.token) == b"x"
    await all_free(replica)


async def test_forged_tokens_open_nothing(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    identity = replica.app.identity
    forged = format_token(identity.replica_id, identity.incarnation, bytes(16))
    assert await told_by(door.dispatch(forged)) == ("SLOT_UNKNOWN", NO)
    assert await told_by(door.renew(forged)) == ("SLOT_UNKNOWN", NO)
    assert await door.release(forged) == (1, 2)
    assert await door.dispatch(slot.token) == b"x"


async def test_tokens_of_a_replica_that_was_restarted_are_gone(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    parsed = parse_token(slot.token)
    assert parsed is not None
    earlier = format_token("r-1", "0" * 32, parsed.secret)
    assert await told_by(door.dispatch(earlier)) == ("REPLICA_GONE", NO)
    assert await told_by(door.renew(earlier)) == ("REPLICA_GONE", NO)
    assert await door.release(earlier) == (1, 2), "nothing of it is held"
    other = format_token("r-2", parsed.incarnation, parsed.secret)
    for operation in (door.dispatch(other), door.renew(other), door.release(other)):
        assert await told_by(operation) == ("REPLICA_GONE", NO)
    assert await door.dispatch(slot.token) == b"x"


async def test_a_token_of_another_endpoint_opens_nothing(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve(endpoint="mine")
    with pytest.raises(Failed, match="'mine', not for 'yours'") as caught:
        await door.dispatch(slot.token, endpoint="yours")
    assert caught.value.told == ("SLOT_UNKNOWN", NO)
    assert await door.dispatch(slot.token, endpoint="mine") == b"x"
    await all_free(replica)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "value"), [("ordering_key", "k"), ("stop_generation", 1), ("no_reply", True)])
async def test_options_that_make_no_sense_in_a_slot(
    replica: RunningReplica, door: Door, option: str, value: object
) -> None:
    given: dict[str, Any] = {option: value}
    operations: list[Awaitable[object]] = [] if option == "no_reply" else [door.reserve(**given)]
    slot = await door.reserve()
    for operation in [*operations, door.dispatch(slot.token, **given)]:
        with pytest.raises(Failed, match=f"options.{option}: ") as caught:
            await operation
        assert caught.value.told == ("BAD_REQUEST", NO)
        assert caught.value.failure.metadata["field"] == f"options.{option}"
    assert await door.dispatch(slot.token) == b"x"
    await all_free(replica)


async def test_a_reservation_names_its_endpoint(replica: RunningReplica, door: Door) -> None:
    assert await told_by(door.reserve(endpoint="")) == ("BAD_REQUEST", NO)
    assert replica.engine.scheduler.is_idle


async def test_reservations_wait_their_turn_and_no_more_than_the_replica_prefetches(
    replica: RunningReplica, door: Door
) -> None:
    first, second = await door.reserve(), await door.reserve()
    third = asyncio.ensure_future(door.reserve())
    await wait_until(lambda: replica.engine.scheduler.waiting == 1)
    assert await told_by(door.reserve()) == ("QUEUE_FULL", NO)
    await door.release(first.token)
    assert (await third).ongoing == 2
    for slot in (second, await third):
        await door.release(slot.token)
    await all_free(replica)


# -- values ------------------------------------------------------------------------------------------------------------


async def test_values_come_one_by_one(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    assert await read_all(door.stream(slot.token, b"1000", method="count")) == [
        b"%d" % number for number in range(1000)
    ]
    await all_free(replica)


async def test_a_handler_that_yields_waits_for_its_reader(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    values = door.stream(slot.token, b"10000", method="blocks")
    assert len(await anext(values)) == 65_536
    for _ in range(50):
        await door.release((await door.reserve()).token)
    assert handler_of(replica).yielded < 500, "a mebibyte, and what the transport holds"


async def test_a_reader_who_leaves_closes_the_handler(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    reading = asyncio.ensure_future(read_all(door.stream(slot.token, b"10000", method="blocks")))
    handler = handler_of(replica)
    await wait_until(lambda: handler.yielded)
    reading.cancel()
    await wait_until(lambda: handler.closed)
    await all_free(replica)
    assert handler.yielded < 10_000


async def test_values_before_a_failure_and_the_failure_itself(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    assert await told_by(anext(door.stream(slot.token, b"x", method="count"))) == ("HANDLER_ERROR", YES)
    slot = await door.reserve()
    assert await read_all(door.stream(slot.token, b"plain", method="echo")) == [b"plain"]
    await all_free(replica)


# -- callers that leave ------------------------------------------------------------------------------------------------


async def test_a_caller_who_leaves_takes_back_what_waits(replica: RunningReplica, door: Door) -> None:
    slots = [await door.reserve() for _ in range(2)]
    waiting = asyncio.ensure_future(door.reserve())
    await wait_until(lambda: replica.engine.scheduler.waiting == 1)
    waiting.cancel()
    await wait_until(lambda: replica.engine.scheduler.waiting == 0)
    for slot in slots:
        await door.release(slot.token)
    await all_free(replica)
    assert table_of(replica).granted == 2


async def test_a_caller_who_leaves_cancels_what_runs(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    dispatching = asyncio.ensure_future(door.dispatch(slot.token, method="wait"))
    await wait_until(lambda: handler_of(replica).started)
    dispatching.cancel()
    await all_free(replica)
    assert await told_by(door.dispatch(slot.token)) == ("SLOT_USED", NO)


async def test_slots_outlive_the_link_over_which_they_were_reserved(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        slots = [await FramesDoor(stream).reserve() for _ in range(2)]
        waiting = asyncio.ensure_future(FramesDoor(stream).reserve())
        await wait_until(lambda: replica.engine.scheduler.waiting == 1)
        waiting.cancel()
    await wait_until(lambda: replica.engine.scheduler.waiting == 0)
    async with by_frames(replica) as frames, directly(replica) as direct:
        assert await frames.dispatch(slots[0].token) == b"x"
        assert await direct.dispatch(slots[1].token) == b"x"
    await all_free(replica)


async def test_a_call_past_its_deadline_does_not_start(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    assert await told_by(door.dispatch(slot.token, timeout_s=0)) == ("DEADLINE_IN_QUEUE", NO)
    assert await told_by(door.dispatch(slot.token)) == ("SLOT_USED", NO)
    await all_free(replica)


# -- drain -------------------------------------------------------------------------------------------------------------


async def test_a_drain_honours_the_slots_that_were_given(live: RunningReplica, open_door: OpenDoor) -> None:
    async with live.router("watching") as router, open_door(live) as door:
        used, back = await door.reserve(), await door.reserve()
        waiting = asyncio.ensure_future(door.reserve())
        await wait_until(lambda: live.engine.scheduler.waiting == 1)
        live.app.replica.stop_asked.set()
        assert await told_by(waiting) == ("DRAINING", NO)
        assert await told_by(door.reserve()) == ("DRAINING", NO)
        await wait_until(lambda: router.capacities[-1].draining)
        assert (await door.renew(used.token)).ongoing == 2
        assert not router.is_dismissed, "routers may still bring calls for slots"
        async with live.router("late") as late:
            assert late.capacities[0].draining
            assert await FramesDoor(late).dispatch(used.token) == b"x"
            assert not late.is_dismissed
            assert await door.release(back.token) == (0, 2)
            await wait_until(lambda: router.is_dismissed and late.is_dismissed)
    assert await live.task == 0


async def test_a_drain_does_not_wait_longer_than_the_leases(live: RunningReplica, open_door: OpenDoor) -> None:
    async with live.router() as router, open_door(live) as door:
        await door.reserve(ttl_s=0.05)
        live.app.replica.stop_asked.set()
        await wait_until(lambda: router.is_dismissed)
        assert table_of(live).expired == 1
    assert await live.task == 0


async def test_a_drain_waits_for_the_calls_in_slots(live: RunningReplica, open_door: OpenDoor) -> None:
    async with live.router("watching") as router, open_door(live) as door:
        slot = await door.reserve()
        live.app.replica.stop_asked.set()
        await wait_until(lambda: router.capacities[-1].draining)
        dispatching = asyncio.ensure_future(door.dispatch(slot.token, method="wait"))
        await wait_until(lambda: live.engine.scheduler.slots.reserved == 0)
        assert not router.is_dismissed
        handler_of(live).gate.set()
        assert await dispatching == b"x"
    assert await live.task == 0


async def test_slots_that_outlive_the_grace_are_lost(replica: RunningReplica, door: Door) -> None:
    assert (await door.reserve()).token
    assert await replica.stop() == 1


# -- what frames alone can do ------------------------------------------------------------------------------------------


async def test_routers_hear_of_the_load_with_each_slot(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        door = FramesDoor(stream)
        slots = [await door.reserve() for _ in range(2)]
        assert [each.others for each in stream.capacities] == [0, 1, 2]
        async with replica.router("router-2") as other:
            assert (other.capacities[0].ongoing, other.capacities[0].others) == (2, 2)
        await door.dispatch(slots[0].token)
        await wait_until(lambda: stream.capacities[-1].others == 1)
        await door.release(slots[1].token)
        assert stream.capacities[-1].others == 0
        assert stream.frames == ["capacity", "slots", "slots", "results", "slots"]


async def test_operations_share_the_ids_of_runs(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        assert await stream.send_op() == 1
        await wait_until(lambda: stream.failures)
        assert stream.failures[1].reason == "NOT_IMPLEMENTED"
        await stream.send(stream.run([b"x"]))
        stream._next = 2
        await stream.send_op(release={"token": "x"})
        await wait_until(lambda: stream.ended)
        assert stream.error is not None
        assert "slots.ops.op_id: run ids strictly increase on a stream, got 2 after 2" in str(stream.error.details())


async def test_a_reservation_waits_for_its_router_to_be_heard(clock: FakeClock, replica: RunningReplica) -> None:
    async with replica.router(features=["heartbeats"]) as stream:
        stream.echoes = False
        clock.advance(10)
        reserving = asyncio.ensure_future(FramesDoor(stream).reserve())
        await wait_until(lambda: any(link.parked for link in replica.engine._links))
        assert table_of(replica).granted == 0
        stream.echoes = True
        assert (await reserving).ongoing == 1, "an echo lets it start"


async def test_with_a_sign_of_life_a_router_hears_how_loaded_the_replica_is(replica: RunningReplica) -> None:
    """It would go on counting what others have had, and send elsewhere what then waits there behind leases."""
    async with replica.router("router-2") as other, replica.router(features=["heartbeats"]) as stream:
        door = FramesDoor(other)
        slot = await door.reserve()
        await wait_until(lambda: stream.capacities[-1].others == 1)
        await door.release(slot.token)
        await wait_until(lambda: stream.capacities[-1].others == 0)
        assert set(stream.frames) == {"capacity", "heartbeat"}


async def test_a_slot_is_what_it_seems(replica: RunningReplica, door: Door) -> None:
    """Nothing but its token tells who may use it, and no two have the same."""
    slots: list[Slot] = []
    for _ in range(50):
        slots.append(await door.reserve())
        await door.release(slots[-1].token)
    assert len({slot.token for slot in slots}) == 50
    assert "secret" not in repr(parse_token(slots[0].token))
