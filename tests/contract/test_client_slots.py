"""Slots of the asyncio client, over real gRPC: reserved, renewed, used, given back."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.chunks import MAX_INLINE_BYTES
from slotmesh.codec import JSON, OCTET_STREAM, DecodeError
from slotmesh.errors import Executed, Failure, Reason
from tests.fakes.slot_service import FakeSlots
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

BROKEN = Failure(
    reason=Reason.HANDLER_ERROR,
    message="ValueError: odd",
    executed=Executed.YES,
    metadata={"replica_id": "decode-0"},
)


def count(payload: bytes) -> Iterable[bytes | Failure]:
    """As many values as the payload says; `!` after the number: then it fails."""
    for number in range(int(payload.rstrip(b"!"))):
        yield b"%d" % number
    if payload.endswith(b"!"):
        yield BROKEN


@pytest_asyncio.fixture
async def slots() -> AsyncIterator[FakeSlots]:
    async with FakeSlots() as slots:
        slots.yields = count
        yield slots


@pytest_asyncio.fixture
async def mesh(slots: FakeSlots) -> AsyncIterator[slotmesh.Mesh]:
    async with slotmesh.connect(slots.address) as mesh:
        yield mesh
    await slots.until_free()


@pytest_asyncio.fixture
async def decode(mesh: slotmesh.Mesh) -> slotmesh.Endpoint:
    return mesh.endpoint("decode").options(content_type=OCTET_STREAM)


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
    assert 16 <= len(reserved.request_id) <= 1024
    assert (dispatched.endpoint, dispatched.token) == ("decode", slot.token)
    options = dispatched.options
    assert (options.method, options.content_type, options.timeout.seconds) == ("generate", JSON, 3)
    assert dict(options.metadata) == {"c": "d"}
    assert (options.shard_key, options.idempotent, options.HasField("relative_slo")) == ("", False, False)


async def test_what_is_said_for_a_reservation_goes_before_the_view(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    view = decode.options(timeout=7, shard_key="user")
    async with view.reserve(timeout=timedelta(seconds=2), shard_key="other"):
        pass
    options = slots.requests[0].options
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


# -- leaving -----------------------------------------------------------------------------------------------------------


async def test_leaving_without_a_call_gives_the_slot_back(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve():
        assert slots.table.states() == ["reserved"]
    assert slots.table.states() == ["released"], "before the next statement"
    assert slots.rpcs == ["ReserveSlot", "ReleaseSlot"]


async def test_an_exception_gives_the_slot_back_and_passes(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    error = ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError) as caught:
        async with decode.reserve():
            raise error
    assert caught.value is error
    assert slots.table.states() == ["released"]


@pytest.mark.parametrize("what", ["failure", "cut"])
async def test_a_release_that_fails_hides_nothing(slots: FakeSlots, what: str) -> None:
    if what == "failure":
        slots.failures["ReleaseSlot"] = Failure(reason=Reason.INTERNAL, message="no")
    else:
        slots.cut.add("ReleaseSlot")
    async with slotmesh.connect(slots.address, connect_timeout=0.2) as mesh:
        with pytest.raises(ZeroDivisionError):
            async with mesh.endpoint("decode").reserve():
                raise ZeroDivisionError
        async with mesh.endpoint("decode").reserve():
            pass  # nor is it heard where nothing else went wrong: the lease ends by itself


async def test_release_says_how_loaded_the_replica_is(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as other, decode.reserve() as slot:
        assert await slot.release() == slotmesh.ReplicaLoad(ongoing=1, max_ongoing=8)
        assert await slot.release() == slotmesh.ReplicaLoad(ongoing=1, max_ongoing=8), "again: no harm"
        with pytest.raises(slotmesh.SlotUnknown, match="given back"):
            await slot.generate(b"x")
        assert await other.generate(b"x") == b"x"
        assert await other.release() == slotmesh.ReplicaLoad(ongoing=0, max_ongoing=8), "after a call: no effect"
    assert slots.table.states() == ["done", "released"]
    assert slots.count("ReleaseSlot") == 3, "leaving the block adds none"


async def test_release_tells_what_went_wrong(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    slots.failures["ReleaseSlot"] = Failure(reason=Reason.INTERNAL, message="told to")
    async with decode.reserve() as slot:
        with pytest.raises(slotmesh.InternalError, match="told to"):
            await slot.release()
    slots.table.slots[slot.token].state = "released"


async def test_a_slot_is_of_no_use_after_its_block(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as unused:
        pass
    async with decode.reserve() as used:
        await used.generate(b"x")
    before = len(slots.rpcs)
    with pytest.raises(slotmesh.SlotUnknown, match="its block was left"):
        unused.generate(b"x")
    with pytest.raises(slotmesh.SlotUnknown, match="its block was left"):
        unused.generate.stream(b"x")
    with pytest.raises(slotmesh.SlotUsed):
        used.generate(b"x")
    assert len(slots.rpcs) == before


async def test_a_reservation_is_of_use_once(decode: slotmesh.Endpoint) -> None:
    reservation = decode.reserve()
    async with reservation:
        with pytest.raises(RuntimeError, match="of use once"):
            async with reservation:
                pass


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


# -- values ------------------------------------------------------------------------------------------------------------


async def test_values_of_a_call(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as slot:
        assert [value async for value in slot.generate.stream(b"1000")] == [b"%d" % number for number in range(1_000)]
    async with decode.reserve() as slot:
        assert [value async for value in slot.generate.stream(b"0")] == []
    assert slots.rpcs == ["ReserveSlot", "DispatchStreaming"] * 2
    assert slots.requests[1].options.streaming


async def test_a_failure_comes_after_the_values_before_it(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as slot:
        values = slot.generate.stream(b"2!")
        assert [await anext(values), await anext(values)] == [b"0", b"1"]
        with pytest.raises(slotmesh.HandlerError) as caught:
            await anext(values)
        assert (caught.value.endpoint, caught.value.method) == ("decode", "generate")
        assert [value async for value in values] == [], "it is told once"
    assert slots.count("ReleaseSlot") == 0


async def test_breaking_off_takes_the_call_back(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as slot:
        async for _ in slot.generate.stream(b"1000000"):
            break
        gc.collect()
        await slots.until_free()
    assert slots.rpcs == ["ReserveSlot", "DispatchStreaming"], "a value had come: it had reached its replica"


async def test_closing_the_values(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    gate = slots.hold("DispatchStreaming")
    async with decode.reserve() as slot:
        values = slot.generate.stream(b"1")
        waiting = asyncio.ensure_future(anext(values, b"nothing"))
        await slots.until(lambda: slots.count("DispatchStreaming") == 1)
        await values.aclose()
        assert await waiting == b"nothing"
    gate.set()
    await slots.until_free()
    assert slots.table.states() == ["released"], "the call may not have reached its replica"


async def test_an_exception_takes_values_back(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    streams = []

    async def program() -> None:
        async with decode.reserve() as slot:
            streams.append(slot.generate.stream(b"1000000"))
            await anext(streams[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await program()
    await slots.until_free()
    assert [value async for value in streams[0]] == []


# -- renewal -----------------------------------------------------------------------------------------------------------


async def test_a_slot_is_renewed_while_its_block_runs(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve(ttl=0.3) as slot:
        await slots.until(lambda: slots.count("RenewSlot") == 4)  # more than one lease later
        assert slots.table.states() == ["reserved"]
        assert await slot.generate(b"x") == b"x"
    assert {request.ttl.nanos for request in slots.requests[1:5]} == {300_000_000}


async def test_renewal_ends_with_the_call(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    gate = slots.hold_reply("Dispatch")
    async with decode.reserve(ttl=0.06) as slot:
        await slots.until(lambda: slots.count("RenewSlot") == 2)
        result = slot.generate(b"x")
        await slots.until(lambda: slots.count("Dispatch") == 1)
        renewals, until = slots.count("RenewSlot"), asyncio.get_running_loop().time() + 0.2
        await wait_until(lambda: asyncio.get_running_loop().time() > until)
        gate.set()
        await result
    assert slots.count("RenewSlot") == renewals


async def test_a_short_block_renews_nothing(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve(ttl=0.1):
        pass
    until = asyncio.get_running_loop().time() + 0.2
    await wait_until(lambda: asyncio.get_running_loop().time() > until)
    assert slots.rpcs == ["ReserveSlot", "ReleaseSlot"]


@pytest.mark.parametrize("reason", [Reason.SLOT_EXPIRED, Reason.SLOT_UNKNOWN, Reason.SLOT_USED, Reason.REPLICA_GONE])
async def test_a_renewal_that_fails_is_told_at_the_next_use(
    slots: FakeSlots, decode: slotmesh.Endpoint, reason: Reason
) -> None:
    slots.failures["RenewSlot"] = Failure(reason=reason, message="told to")
    async with decode.reserve(ttl=0.1) as slot:
        await wait_until(lambda: slots.count("RenewSlot") == 1)
        await wait_until(lambda: not any("renew" in task.get_name() for task in asyncio.all_tasks()))
        with pytest.raises(slotmesh.SlotError) as caught:
            slot.generate(b"x")
        assert caught.value.reason is reason
    assert slots.count("Dispatch") == 0
    slots.table.slots[slot.token].state = "released"


async def test_a_slot_goes_on_whose_renewal_was_granted_unseen(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    """The reply takes longer than the lease that is known here; the slot lives."""
    gate = slots.hold_reply("RenewSlot")
    async with decode.reserve(ttl=0.6) as slot:
        await slots.until(lambda: slots.count("RenewSlot") == 2)
        gate.set()
        await slots.until(lambda: slots.count("RenewSlot") == 6)
        assert slots.table.states() == ["reserved"]
        assert await slot.generate(b"x") == b"x"


async def test_a_renewal_that_got_lost_is_tried_again(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    slots.failures["RenewSlot"] = Failure(reason=Reason.INTERNAL, message="told to")
    async with decode.reserve(ttl=0.5) as slot:
        await slots.until(lambda: slots.count("RenewSlot") == 1)
        slots.failures.clear()
        await slots.until(lambda: slots.count("RenewSlot") >= 4)
        assert await slot.generate(b"x") == b"x"


# -- no slot -----------------------------------------------------------------------------------------------------------


async def test_no_slot_in_time(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    slots.table.permits["decode"] = 1
    async with decode.reserve() as held:
        with pytest.raises(slotmesh.NoSlot) as caught:
            async with decode.reserve(timeout=0.05):
                raise AssertionError
        assert (caught.value.endpoint, caught.value.executed) == ("decode", Executed.NO)
        assert await held.generate(b"x") == b"x"
    async with decode.reserve(timeout=0.05):
        pass


async def test_a_reservation_waits_its_turn(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    slots.table.permits["decode"] = 1

    async def program() -> None:
        async with decode.reserve() as slot:
            await slot.generate(b"x")

    await asyncio.gather(*(program() for _ in range(20)))
    assert slots.table.most_held["decode"] == 1


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


# -- routers -----------------------------------------------------------------------------------------------------------


async def test_rpcs_go_to_any_router(slots: FakeSlots) -> None:
    async with FakeSlots(slots.table) as other:
        async with slotmesh.connect(f"{slots.address},{other.address}") as mesh:
            decode = mesh.endpoint("decode")
            async with decode.reserve(ttl=0.6) as slot, decode.reserve() as unused:
                await slots.stop()
                await other.until(lambda: other.count("RenewSlot") == 2)
                assert await slot.generate(1) == [1]
                assert unused.replica_id == "decode-0"
            assert other.rpcs[-2:] == ["Dispatch", "ReleaseSlot"]
            assert slots.table.states() == ["done", "released"]


@pytest.mark.parametrize("how", ["the rpc breaks", "the router is gone"])
async def test_a_call_whose_router_is_lost_is_not_sent_again(slots: FakeSlots, how: str) -> None:
    async with FakeSlots(slots.table) as other:
        async with slotmesh.connect([slots.address, other.address]) as mesh:
            async with mesh.endpoint("decode").reserve() as slot:
                gate = slots.hold_reply("Dispatch")
                call = slot.generate(1)
                await slots.until(lambda: slots.table.states() == ["running"])
                if how == "the rpc breaks":
                    slots.cut.add("Dispatch")
                    gate.set()
                else:
                    await slots.stop()
                with pytest.raises(slotmesh.RouterLost, match="may have been executed") as caught:
                    await call
            assert caught.value.executed is Executed.UNKNOWN
            assert (slots.count("Dispatch"), other.count("Dispatch")) == (1, 0)


async def test_values_whose_router_is_lost(slots: FakeSlots) -> None:
    async with FakeSlots(slots.table) as other:
        async with slotmesh.connect([slots.address, other.address]) as mesh:
            async with mesh.endpoint("decode").options(content_type=OCTET_STREAM).reserve() as slot:
                slots.hold_reply("DispatchStreaming")
                values = slot.generate.stream(b"1")
                assert await anext(values) == b"0"
                await slots.stop()
                with pytest.raises(slotmesh.RouterLost) as caught:
                    await anext(values)
                assert caught.value.executed is Executed.UNKNOWN
            assert other.count("DispatchStreaming") == 0


async def test_a_reservation_goes_on_at_another_router(slots: FakeSlots) -> None:
    async with FakeSlots(slots.table) as other:
        async with slotmesh.connect([slots.address, other.address]) as mesh:
            decode = mesh.endpoint("decode")
            slots.hold("ReserveSlot")
            entering = asyncio.create_task(decode.reserve().__aenter__())
            await slots.until(lambda: slots.count("ReserveSlot") == 1)
            await slots.stop()
            slot = await entering
            assert await slot.generate(1) == [1]
            assert other.rpcs == ["ReserveSlot", "Dispatch"]
            first, second = slots.requests[0], other.requests[0]
            assert first.request_id == second.request_id


async def test_the_first_router_need_not_be_there(slots: FakeSlots) -> None:
    async with FakeSlots() as gone:
        pass
    async with slotmesh.connect([gone.address, slots.address]) as mesh:
        async with mesh.endpoint("decode").reserve() as slot:
            assert await slot.generate(1) == [1]


async def test_no_router_at_all(slots: FakeSlots) -> None:
    await slots.stop()
    async with slotmesh.connect(slots.address, connect_timeout=0.2) as mesh:
        with pytest.raises(slotmesh.RouterLost, match=f"no router answered at {slots.address}") as caught:
            async with mesh.endpoint("decode").reserve():
                raise AssertionError
        assert caught.value.executed is Executed.NO


async def test_a_call_that_found_no_router_was_not_executed(slots: FakeSlots) -> None:
    async with slotmesh.connect(slots.address, connect_timeout=0.2) as mesh:
        async with mesh.endpoint("decode").reserve() as slot:
            await slots.stop()
            with pytest.raises(slotmesh.RouterLost) as caught:
                await slot.generate(1)
        assert caught.value.executed is Executed.NO


# -- closing -----------------------------------------------------------------------------------------------------------


async def test_closing_the_mesh_gives_all_back(slots: FakeSlots, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    slots.table.permits["decode"] = 1
    mesh = slotmesh.connect(slots.address)
    decode = mesh.endpoint("decode")
    async with decode.reserve() as slot:
        waiting = asyncio.create_task(decode.reserve().__aenter__())
        await slots.until(lambda: slots.count("ReserveSlot") == 2)
        await mesh.aclose()
        with pytest.raises(slotmesh.CallCancelled, match="closed"):
            await waiting
        with pytest.raises((RuntimeError, slotmesh.SlotUnknown)):
            slot.generate(1)
        await slots.until_free()
    with pytest.raises(RuntimeError, match="closed"):
        async with decode.reserve():
            pass
    assert not caplog.records


async def test_closing_the_mesh_waits_for_calls_in_slots(slots: FakeSlots) -> None:
    gate = slots.hold_reply("Dispatch")
    async with slotmesh.connect(slots.address) as mesh:
        async with mesh.endpoint("decode").reserve() as slot:
            result = slot.generate(1)
        await slots.until(lambda: slots.table.states() == ["running"])
        asyncio.get_running_loop().call_later(0.05, gate.set)
    assert result.done()
    assert await result == [1]


async def test_closing_the_mesh_without_grace_ends_calls_in_slots(slots: FakeSlots) -> None:
    slots.hold_reply("Dispatch")
    async with slotmesh.connect(slots.address) as mesh:
        async with mesh.endpoint("decode").reserve() as slot:
            result = slot.generate(1)
            await slots.until(lambda: slots.table.states() == ["running"])
        await mesh.aclose(0)
    with pytest.raises(slotmesh.CallCancelled) as caught:
        await result
    assert caught.value.executed is Executed.UNKNOWN
    await slots.until_free()
