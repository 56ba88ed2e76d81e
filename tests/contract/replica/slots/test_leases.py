"""Leases of slots at the replica, at both doors: renewed, ended, given back, and the tokens that stand for them."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from slotmesh.calls.slot_tokens import format_token, parse_token
from slotmesh.errors import Executed
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import slot_service_pb2, slot_service_pb2_grpc
from tests.contract.replica.slots.slot_replica import all_free, handler_of, table_of, told_by
from tests.support.fakes.clock import FakeClock
from tests.support.replicas import RunningReplica
from tests.support.slot_doors import Door, Failed, OpenDoor, by_frames, directly
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

NO = Executed.NO


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


async def test_an_identified_dispatch_to_a_replica_that_was_restarted_may_have_been_executed(
    replica: RunningReplica,
) -> None:
    earlier = format_token("r-1", "0" * 32, bytes(16))
    async with open_channel(replica.address) as channel:
        stub = slot_service_pb2_grpc.SlotServiceStub(channel)
        for request_id, expected in (
            ("", ("REPLICA_GONE", Executed.NO)),
            ("pay-1", ("REPLICA_LOST", Executed.UNKNOWN)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Dispatch(slot_service_pb2.DispatchRequest(token=earlier, request_id=request_id))
            failure = from_rpc_error(caught.value)
            assert (failure.reason, failure.executed) == expected


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
