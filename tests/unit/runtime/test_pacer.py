"""Small frames are held back by a clock and a timer, and always looked at again."""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.transport.pump import Pacer
from tests.support.fakes.clock import FakeClock

pytestmark = pytest.mark.asyncio
LONG_S = 10.0


def still() -> float:
    """A moment that does not pass."""
    return 5.0


async def test_whoever_holds_a_frame_back_is_woken() -> None:
    woken, clock = asyncio.Event(), FakeClock()
    pacer = Pacer(woken.set, clock.now)
    assert not pacer.holds(1, 500, are_quick=True)
    pacer.left()
    assert pacer.holds(1, 500, are_quick=True)
    clock.advance(1.0)
    async with asyncio.timeout(LONG_S):
        await woken.wait()
    assert not pacer.holds(1, 500, are_quick=True)


async def test_a_call_alone_is_never_held_back() -> None:
    pacer = Pacer(lambda: None, still)
    for _ in range(1000):
        assert not pacer.holds(1, 0, are_quick=True)
        pacer.left()


async def test_asking_changes_nothing() -> None:
    """What does not leave in the end, as there is no room for it, costs the next frame nothing."""
    pacer = Pacer(lambda: None, still)
    assert not any(pacer.holds(1, 500, are_quick=True) for _ in range(1000))


def holding(woken: list[bool]) -> Pacer:
    """One that holds a frame back, as some have followed one another."""
    pacer = Pacer(lambda: woken.append(True), still)
    pacer.left()
    assert not pacer.holds(1, 500, are_quick=False), "after a pause some may"
    for _ in range(10):
        pacer.left()
    assert pacer.holds(1, 500, are_quick=False)
    return pacer


async def test_in_a_hurry_what_was_held_back_leaves_at_once() -> None:
    woken: list[bool] = []
    pacer = holding(woken)
    pacer.hurry()
    assert woken == [True]
    assert not any(pacer.holds(1, 500, are_quick=True) for _ in range(100))


async def test_once_stopped_it_wakes_nobody() -> None:
    woken: list[bool] = []
    pacer = holding(woken)
    pacer.stop()
    pacer.hurry()
    assert woken == []


async def test_a_frame_that_gathers_is_looked_at_again_in_the_next_turn() -> None:
    woken: list[bool] = []
    pacer = Pacer(lambda: woken.append(True), still)
    assert not pacer.gathers(1)
    pacer.gathered(2, is_alone=True)
    assert pacer.gathers(1)
    assert not woken
    await asyncio.sleep(0)
    assert woken == [True]
    pacer.hurry()
    assert not pacer.gathers(1)
