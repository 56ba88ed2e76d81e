"""Slots of the asyncio client, over real gRPC: reserved, used, given back."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest

import slotmesh
from slotmesh.codec import JSON, DecodeError
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1.slot_service_pb2 import ReserveSlotRequest
from tests.support.fakes.counting import BROKEN
from tests.support.fakes.slot_service import FakeSlots

pytestmark = pytest.mark.asyncio


# -- the happy path ----------------------------------------------------------------------------------------------------


async def test_a_call_in_a_slot_costs_two_rpcs(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as slot:
        assert (slot.backend, slot.replica_id, slot.ongoing) == ("decode-v1", "decode-0", 1)
        assert slot.replica_address == slots.address
        assert await slot.generate(b"prompt") == b"prompt"
    assert slots.rpcs == ["ReserveSlot", "Dispatch"], "and no release"
    assert slots.table.states() == ["done"]


async def test_what_a_reservation_and_a_call_say(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    view = mesh.endpoint("decode").options(
        content_type=JSON, timeout=7, slo=0.5, shard_key="user", metadata={"a": "b"}, idempotent=True
    )
    async with view.reserve(ttl=timedelta(seconds=20), replica_id="decode-3", excluded_replica_ids=["x", "y"]) as slot:
        assert slot.replica_id == "decode-3"
        assert await slot.generate.options(timeout=3, metadata={"c": "d"}).returning(list)([1]) == [[1]]
    reserved, dispatched = slots.requests
    assert (reserved.endpoint, reserved.ttl.seconds, reserved.replica_id) == ("decode", 20, "decode-3")
    assert list(reserved.excluded_replica_ids) == ["x", "y"]
    options = reserved.options
    assert (options.shard_key, options.relative_slo.nanos, options.method) == ("user", 500_000_000, "")
    assert 6 < options.timeout.ToNanoseconds() / 1e9 <= 7, "what is left of the view's timeout"
    assert 16 <= len(reserved.request_id) <= 128
    assert (dispatched.endpoint, dispatched.token) == ("decode", slot.token)
    options = dispatched.options
    assert (options.method, options.content_type, options.timeout.seconds) == ("generate", JSON, 3)
    assert dict(options.metadata) == {"c": "d"}
    assert (options.shard_key, options.idempotent, options.HasField("relative_slo")) == ("", False, False)


async def test_what_is_said_for_a_reservation_goes_before_the_view(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    view = decode.options(timeout=7, shard_key="user")
    async with view.reserve(timeout=timedelta(seconds=2), shard_key="other"):
        pass
    async with view.options(model_id="m", affinity_key="a").reserve(shard_key="", affinity_key=""):
        pass
    options, emptied = [it.options for it in slots.requests if isinstance(it, ReserveSlotRequest)]
    assert (emptied.shard_key, emptied.affinity_key, emptied.model_id) == ("", "", "m"), "empty is none"
    assert options.shard_key == "other"
    assert 1 < options.timeout.ToNanoseconds() / 1e9 <= 2


async def test_methods_whose_names_are_taken_and_the_handler_itself(
    slots: FakeSlots, decode: slotmesh.Endpoint
) -> None:
    async with decode.reserve() as slot:
        assert await slot.method("release")(b"x") == b"x"
    async with decode.reserve() as slot:
        assert await slot(b"x") == b"x"
    async with decode.reserve() as slot:
        with pytest.raises(ValueError, match="underscore"):
            slot.method("_private")
        with pytest.raises(AttributeError):
            _ = slot._private
    methods = [request.options.method for request in slots.requests if hasattr(request, "payload")]
    assert methods == ["release", ""]


async def test_a_token_is_shown_nowhere(decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as slot:
        shown = f"{slot!r} {slot.generate!r}"
        assert "decode-0" in shown
        assert slot.token not in shown


# -- calls -------------------------------------------------------------------------------------------------------------


async def test_a_second_call_raises_without_an_rpc(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as slot:
        first = slot.generate(b"first")
        with pytest.raises(slotmesh.SlotUsed) as caught:
            slot.generate(b"second")
        with pytest.raises(slotmesh.SlotUsed):
            slot.generate.stream(b"second")
        assert await first == b"first"
    assert slots.rpcs == ["ReserveSlot", "Dispatch"]
    assert (caught.value.endpoint, caught.value.replica_id, caught.value.executed) == (
        "decode",
        "decode-0",
        Executed.NO,
    )


async def test_a_call_uses_the_slot_when_it_is_made(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    """Two tasks that make their calls in one turn of the loop: one gets it."""
    async with decode.reserve() as slot:

        async def call() -> bytes:
            result: bytes = await slot.generate(b"x")
            return result

        outcomes = await asyncio.gather(call(), call(), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["SlotUsed", "bytes"]
    assert slots.rpcs == ["ReserveSlot", "Dispatch"]


async def test_arguments_that_cannot_be_sent_use_nothing(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as slot:
        with pytest.raises(TypeError, match=r"decode\.generate"):
            slot.generate("no bytes")
        with pytest.raises(slotmesh.PayloadTooLarge):
            slot.generate(bytes(MAX_INLINE_BYTES + 1))
        assert await slot.generate(b"x") == b"x"
    assert slots.rpcs == ["ReserveSlot", "Dispatch"]


async def test_the_error_of_a_call_reaches_the_caller(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    slots.answer = lambda _: BROKEN
    with pytest.raises(slotmesh.HandlerError, match="ValueError: odd") as caught:
        async with decode.reserve() as slot:
            await slot.generate(b"x")
    assert (caught.value.endpoint, caught.value.method) == ("decode", "generate")
    assert slots.rpcs == ["ReserveSlot", "Dispatch"], "it was executed: nothing is held"


async def test_a_call_that_did_not_reach_its_replica_leaves_nothing_held(
    slots: FakeSlots, decode: slotmesh.Endpoint
) -> None:
    slots.failures["Dispatch"] = Failure(reason=Reason.BAD_REQUEST, message="metadata: no", executed=Executed.NO)
    with pytest.raises(slotmesh.BadRequest, match="metadata: no"):
        async with decode.reserve() as slot:
            await slot.generate(b"x")
    assert slots.table.states() == ["released"]


@pytest.mark.parametrize("reason", [Reason.SLOT_EXPIRED, Reason.SLOT_UNKNOWN, Reason.SLOT_USED, Reason.REPLICA_GONE])
async def test_what_the_replica_says_of_a_slot(slots: FakeSlots, decode: slotmesh.Endpoint, reason: Reason) -> None:
    slots.failures["Dispatch"] = Failure(reason=reason, message="told to", metadata={"replica_id": "decode-9"})
    with pytest.raises(slotmesh.SlotError) as caught:
        async with decode.reserve() as slot:
            await slot.generate(b"x")
    assert (caught.value.reason, caught.value.replica_id) == (reason, "decode-9")
    assert caught.value.executed is Executed.NO
    slots.table.slots[slot.token].state = "released"


async def test_results_have_the_type_wanted(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    decode = mesh.endpoint("decode")
    async with decode.reserve() as slot:
        assert await slot.generate.returning(list[int])(1, 2) == [1, 2]
    async with decode.reserve() as slot:
        with pytest.raises(DecodeError, match=r"decode\.generate"):
            await slot.generate.returning(list[str])(1, 2)
    assert slots.count("ReleaseSlot") == 0


async def test_a_call_goes_on_after_its_block(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    gate = slots.hold_reply("Dispatch")
    async with decode.reserve() as slot:
        result = slot.generate(b"x")
    gate.set()
    assert await result == b"x"
    assert slots.rpcs == ["ReserveSlot", "Dispatch"]


async def test_an_exception_takes_the_call_back_that_runs(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    slots.hold_reply("Dispatch")
    results = []

    async def program() -> None:
        async with decode.reserve() as slot:
            results.append(slot.generate(b"x"))
            await slots.until(lambda: slots.table.states() == ["running"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await program()
    await slots.until_free()
    assert results[0].cancelled()
    assert slots.cancelled == ["Dispatch"]


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"ttl": 0}, "ttl must be more than 0 and at most 300 seconds, got 0"),
        ({"ttl": -1}, "ttl must be"),
        ({"ttl": 300.1}, "ttl must be"),
        ({"ttl": math.nan}, "ttl must be"),
        ({"ttl": timedelta(minutes=6)}, "ttl must be"),
        ({"ttl": "10"}, "ttl must be a number of seconds or a timedelta, got '10'"),
        ({"ttl": None}, "ttl must be a number"),
        ({"ttl": True}, "ttl must be a number"),
        ({"timeout": -1}, "timeout must be"),
        ({"timeout": "soon"}, "timeout must be a number"),
        ({"shard_key": 7}, "shard_key must be a str"),
        ({"replica_id": 7}, "replica_id must be a str"),
        ({"excluded_replica_ids": "decode-0"}, "excluded_replica_ids must be a sequence of str"),
        ({"excluded_replica_ids": 7}, "excluded_replica_ids must be a sequence of str"),
        ({"excluded_replica_ids": [7]}, "excluded_replica_ids must be a str"),
        ({"excluded_replica_ids": [""]}, "excluded_replica_ids must not name an empty id"),
    ],
)
async def test_arguments_that_no_reservation_may_have(
    slots: FakeSlots, decode: slotmesh.Endpoint, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(slotmesh.BadRequest, match=says) as caught:
        decode.reserve(**arguments)
    assert isinstance(caught.value, ValueError)
    assert caught.value.metadata["field"] in arguments
    assert not slots.rpcs


async def test_options_that_mean_nothing_in_a_slot(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    with pytest.raises(TypeError, match="no argument ordering_key; there are ttl"):
        decode.reserve(ordering_key="k")  # type: ignore[call-arg]
    with pytest.raises(slotmesh.BadRequest, match="reply must be True"):
        decode.options(reply=False).reserve()
    async with decode.reserve() as slot:
        with pytest.raises(TypeError, match="no option idempotent; there are content_type, timeout, metadata"):
            slot.generate.options(idempotent=True)  # type: ignore[call-arg]
        with pytest.raises(slotmesh.BadRequest, match="timeout must be"):
            slot.generate.options(timeout=-1)
