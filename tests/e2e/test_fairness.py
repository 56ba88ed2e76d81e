"""A client that makes one call at a time beside one that floods."""

from __future__ import annotations

import pytest

from benchmarks.flood import NARROW, WIDE, one_beside_many

CALLS = 25_000
pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


@pytest.mark.long
async def test_one_call_at_a_time_has_its_turn_beside_a_deep_queue() -> None:
    """In one queue for all, each of its calls would wait for the 8,000 before it: a handful could be made."""
    outcome = await one_beside_many(WIDE, calls=CALLS)
    assert outcome.failures == []
    assert len(outcome.beside_s) >= 50, "calls that were made and answered while the flood lasted"
    (flood,) = outcome.floods
    assert (flood.calls, flood.refused) == (CALLS, 0), "what keeps to its window is not refused"


@pytest.mark.long
async def test_one_call_at_a_time_is_let_in_where_the_queue_is_full_of_others() -> None:
    outcome = await one_beside_many(NARROW, calls=CALLS)
    assert outcome.failures == []
    assert len(outcome.beside_s) >= 50
    (flood,) = outcome.floods
    assert flood.refused > 0, "the queue was full"
    assert flood.calls == CALLS, "each of them was answered, in the end"
