"""What is counted of a stream's calls."""

from __future__ import annotations

import pytest

from benchmarks.tally import Tally


def sent(*frames: tuple[int, float]) -> Tally:
    """Frames of so many calls, each at its time."""
    tally, first = Tally(), 1
    for calls, at in frames:
        tally.sending(range(first, first + calls), at)
        first += calls
    return tally


def test_every_call_has_one_outcome_or_is_wrong() -> None:
    tally = sent((3, 0.0), (2, 1.0))
    assert (tally.sent, tally.open, tally.wrong) == (5, 5, 5)
    tally.results([1, 2, 4], 1.5)
    tally.failure([3], "QUEUE_FULL", refused=True, says_when=True, now=1.5)
    assert (tally.answered, tally.open, tally.wrong) == (3, 1, 1)
    tally.results([5], 2.5)
    assert (tally.open, tally.wrong) == (0, 0)
    tally.results([5], 2.5)
    tally.results([5], 2.5)
    assert tally.wrong == 1, "two outcomes, or three"
    assert tally.answered_in == {1: 3, 2: 3}


def test_a_refusal_took_as_long_as_since_its_frame_was_written() -> None:
    tally = sent((2, 1.0), (2, 2.0), (2, 3.0))
    for ids, now in (([1, 2], 1.5), ([4], 2.25), ([5, 6], 4.0)):
        tally.failure(ids, "QUEUE_FULL", refused=True, says_when=now < 4, now=now)
    assert list(tally.refusals_s) == pytest.approx([0.5, 0.25, 1.0])
    assert tally.without_delay == 1
    tally.failure([3], "DEADLINE_IN_QUEUE", refused=False, says_when=False, now=9.0)
    assert len(tally.refusals_s) == 3
    assert tally.without_delay == 1
    assert tally.failed == {"QUEUE_FULL": 5, "DEADLINE_IN_QUEUE": 1}
