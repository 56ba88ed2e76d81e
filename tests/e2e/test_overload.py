"""Twice the load that the slots can serve: as much is answered as before, the rest is refused, nothing is lost."""

from __future__ import annotations

import pytest

from benchmarks.overload import overload


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_goodput_stays_near_its_peak_and_every_call_has_one_outcome() -> None:
    outcome = await overload(seconds=3.0, max_queued_calls=500, seek_s=0.6)
    assert outcome.goodput > 0.8 * outcome.peak, outcome
    assert outcome.wrong == 0, "calls without exactly one outcome"
    assert set(outcome.failed) == {"QUEUE_FULL"}
    assert outcome.without_delay == 0, "refusals that do not say when to come again"
    assert outcome.answered + outcome.failed.total() == outcome.offered
    assert outcome.failed.total() > outcome.offered / 5, "it was an overload"
