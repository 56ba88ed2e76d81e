"""The shares of an endpoint: a tenant has one, however many there are."""

from __future__ import annotations

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
