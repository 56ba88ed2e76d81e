"""The shares of an endpoint: a tenant has one, however many there are."""

from __future__ import annotations

import asyncio
import gc

import pytest

from slotmesh.client.calls import buffer as buffers
from slotmesh.client.calls.buffer import BufferShares, ClientBuffer


@pytest.mark.parametrize("has_threads", [False, True])
def test_a_tenant_whose_share_was_dropped_has_the_one_that_is_still_in_use(
    has_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "MAX_IDLE_SHARES", 8)
    shares = BufferShares(ClientBuffer(1_000, 1_000_000, has_threads=has_threads))
    kept = shares.of("kept")  # as a method of a view has it
    for number in range(100):
        shares.of(f"passing {number}")
    assert kept.take(3, 30)
    assert shares.of("kept") is kept
    for number in range(100):
        shares.of(f"again {number}")
    assert shares.of("kept") is kept, "it holds calls"
    kept.give(3, 30)


def test_shares_that_nothing_uses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MAX_IDLE_SHARES", 8)
    shares = BufferShares(ClientBuffer(1_000, 1_000_000))
    for number in range(1_000):
        shares.of(f"tenant {number}")
    gc.collect()
    assert len(shares._shares) + len(shares._dropped) <= 9


def test_a_new_tenant_looks_at_a_few_shares_however_many_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MAX_IDLE_SHARES", 8)
    looks = 0

    class CountedShare(buffers.BufferShare):
        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            nonlocal looks
            looks += name == "waiters"
            return super().__getattribute__(name)

    monkeypatch.setattr(buffers, "BufferShare", CountedShare)
    shares = BufferShares(ClientBuffer(100_000, 10**9))
    busy = [shares.of(f"tenant {number}") for number in range(500)]
    for share in busy:
        share.calls = 0
        share.waiters.append((1, lambda: True))
    looks = 0
    for number in range(100):
        shares.of(f"new {number}")
    assert looks <= 200
    assert all(shares.of(f"tenant {number}") is share for number, share in enumerate(busy))


@pytest.mark.asyncio
@pytest.mark.parametrize("behind", ["same tenant", "other tenants"])
async def test_a_call_that_waits_for_room_no_longer_lets_those_in_that_waited_behind_it(behind: str) -> None:
    """A large one is the first that waits; there is room for the small ones behind it, and nothing else changes."""
    shares = BufferShares(ClientBuffer(100, 100))
    own = shares.of("own")
    assert own.take(1, 60)
    large = asyncio.ensure_future(own.room(90))
    await asyncio.sleep(0)
    tenants = ["own"] * 3 if behind == "same tenant" else ["own", "second", "third"]
    small = [asyncio.ensure_future(shares.of(tenant).room(5)) for tenant in tenants]
    await asyncio.sleep(0)
    assert not large.done()
    assert not small[0].done(), "it is behind the large one"
    large.cancel()
    await asyncio.wait_for(asyncio.gather(*small), 5.0)
    assert (own.calls, own.nbytes) == ((4, 75) if behind == "same tenant" else (2, 65))
    with pytest.raises(asyncio.CancelledError):
        await large
