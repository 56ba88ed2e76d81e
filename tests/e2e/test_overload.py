"""Twice the load that the slots can serve: what they cannot serve is refused, nothing is lost. Speed: `make bench`."""

from __future__ import annotations

import pytest

from benchmarks.overload import overload

pytestmark = pytest.mark.long


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_every_call_has_one_outcome_and_much_is_refused() -> None:
    outcome = await overload(seconds=1.5, max_queued_calls=500, seek_s=0.3)
    assert outcome.wrong == 0, "calls without exactly one outcome"
    assert set(outcome.failed) == {"QUEUE_FULL"}
    assert outcome.without_delay == 0, "refusals that do not say when to come again"
    assert outcome.answered + outcome.failed.total() == outcome.offered
    assert outcome.failed.total() > outcome.offered / 5, "it was an overload"
    assert outcome.answered > 0
