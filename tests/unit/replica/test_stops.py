"""Which calls a session's failures stop."""

from __future__ import annotations

import pytest

from replica_service.core import stops
from replica_service.core.stops import MAX_GENERATIONS, Stops


@pytest.fixture
def failed() -> Stops:
    """Call 10 of generation 3 has failed."""
    made = Stops()
    made.failed("e", "k", 3, 10)
    return made


@pytest.mark.parametrize(
    ("endpoint", "key", "generation", "call_id", "is_stopped"),
    [
        ("e", "k", 3, 11, True),
        ("e", "k", 3, 9, False),
        ("e", "k", 3, 10, False),
        ("e", "k", 4, 11, False),
        ("e", "k", 2, 11, False),
        ("e", "other", 3, 11, False),
        ("other", "k", 3, 11, False),
    ],
)
def test_calls_behind_a_failure_of_their_generation_are_stopped(
    failed: Stops, endpoint: str, key: str, generation: int, call_id: int, is_stopped: bool
) -> None:
    assert failed.is_stopped(endpoint, key, generation, call_id) is is_stopped


def test_the_first_failure_counts(failed: Stops) -> None:
    failed.failed("e", "k", 3, 12)
    assert failed.is_stopped("e", "k", 3, 11)
    failed.failed("e", "k", 3, 5)
    assert failed.is_stopped("e", "k", 3, 6)


def test_a_lane_remembers_its_newest_generations(failed: Stops) -> None:
    for generation in range(4, 3 + MAX_GENERATIONS):
        failed.failed("e", "k", generation, 10 * generation)
    assert failed.is_stopped("e", "k", 3, 11)
    failed.failed("e", "k", 3 + MAX_GENERATIONS, 90)
    assert not failed.is_stopped("e", "k", 3, 11)
    assert failed.is_stopped("e", "k", 4, 41)


def test_a_session_remembers_its_newest_lanes(failed: Stops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "MAX_LANES", 2)
    failed.failed("e", "second", 1, 20)
    failed.failed("e", "third", 1, 30)
    assert len(failed) == 2
    assert not failed.is_stopped("e", "k", 3, 11)
    assert failed.is_stopped("e", "third", 1, 31)
