"""When a small frame leaves, and when it waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.streams.pacing import (
    COUNTED_FRAMES,
    FULL_CALLS,
    HALF_CALLS,
    MESSAGES_S,
    QUICK,
    STEADY,
    Pace,
    Pacing,
    most_calls,
)

PACES = pytest.mark.parametrize("pace", [QUICK, STEADY], ids=["quick", "steady"])


def after(frames: int, pace: Pace, now: float = 100.0) -> Pacing:
    """So many frames have left at that moment."""
    pacing = Pacing()
    for _ in range(frames):
        pacing.left(now, pace)
    return pacing


@PACES
def test_a_call_alone_leaves_at_once_however_many_have_left(pace: Pace) -> None:
    assert after(1000, pace).wait_s(1, 0, 100.0, pace) == 0.0


@PACES
def test_a_frame_with_as_much_as_is_under_way_leaves_at_once(pace: Pace) -> None:
    pacing = after(1000, pace)
    assert pacing.wait_s(32, 32, 100.0, pace) == 0.0
    assert pacing.wait_s(31, 32, 100.0, pace) > 0.0


@PACES
def test_a_call_for_a_call_is_no_half_that_takes_turns(pace: Pace) -> None:
    """Calls of many callers, one by one: each frame of one would lead to a frame of one."""
    pacing = after(1000, pace)
    assert pacing.wait_s(1, 1, 100.0, pace) > 0.0
    assert pacing.wait_s(HALF_CALLS, HALF_CALLS, 100.0, pace) == 0.0


@PACES
def test_a_full_frame_leaves_at_once(pace: Pace) -> None:
    pacing = after(1000, pace)
    assert pacing.wait_s(FULL_CALLS, 10**6, 100.0, pace) == 0.0
    assert pacing.wait_s(FULL_CALLS - 1, 10**6, 100.0, pace) > 0.0


def test_after_a_pause_a_small_frame_leaves_at_once() -> None:
    assert after(1, QUICK).wait_s(1, 500, 100.0 + QUICK.gap_s, QUICK) == 0.0
    assert Pacing().wait_s(1, 500, 100.0, QUICK) == 0.0


def test_of_calls_that_take_long_some_frames_may_follow_one_another() -> None:
    pacing = Pacing()
    for _ in range(STEADY.burst):
        assert pacing.wait_s(1, 500, 100.0, STEADY) == pytest.approx(0.0, abs=1e-9)
        pacing.left(100.0, STEADY)
    assert pacing.wait_s(1, 500, 100.0, STEADY) == pytest.approx(STEADY.gap_s)


def test_fewer_frames_than_the_pace_are_never_held_back() -> None:
    pacing, now = Pacing(), 100.0
    for _ in range(1000):
        now += STEADY.gap_s * 1.01
        assert pacing.wait_s(1, 500, now, STEADY) == 0.0
        pacing.left(now, STEADY)


def test_a_frame_waits_no_longer_than_what_it_saves() -> None:
    """Two others like it are under way: two messages, there and back."""
    assert after(1, QUICK).wait_s(100, 200, 100.0, QUICK) == pytest.approx(2 * MESSAGES_S)
    assert after(1, QUICK).wait_s(1, 200, 100.0, QUICK) == pytest.approx(QUICK.gap_s)


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 0.01), st.integers(1, 600), st.integers(0, 5000), st.sampled_from((QUICK, STEADY))),
        max_size=60,
    )
)
def test_nothing_waits_for_longer_than_its_pace(steps: list[tuple[float, int, int, Pace]]) -> None:
    """Whatever has left before, and of what pace that was."""
    pacing, now = Pacing(), 5.0
    longest_s = max(QUICK.gap_s, STEADY.gap_s * STEADY.burst)
    for passed_s, calls, unanswered, pace in steps:
        now += passed_s
        wait_s = pacing.wait_s(calls, unanswered, now, pace)
        assert 0.0 <= wait_s <= longest_s + 1e-9
        now += wait_s
        assert pacing.wait_s(calls, unanswered, now, pace) == pytest.approx(0.0, abs=1e-9)
        pacing.left(now, pace)


@PACES
@given(calls=st.integers(1, 600), unanswered=st.integers(0, 5000), frames=st.integers(0, 50))
def test_at_one_pace_nothing_waits_for_longer_than_its_gap(
    pace: Pace, calls: int, unanswered: int, frames: int
) -> None:
    assert after(frames, pace).wait_s(calls, unanswered, 100.0, pace) <= pace.gap_s + 1e-9


@given(calls=st.integers(1, 255), more=st.integers(0, 10**6), frames=st.integers(0, 50))
def test_more_than_what_is_counted_makes_no_difference(calls: int, more: int, frames: int) -> None:
    counted = calls * COUNTED_FRAMES
    pacing = after(frames, QUICK)
    assert pacing.wait_s(calls, counted + more, 100.0, QUICK) == pacing.wait_s(calls, counted, 100.0, QUICK)


def test_what_is_under_way_is_in_two_frames_at_least_where_it_is_much() -> None:
    assert most_calls(512, 0) == 256
    assert most_calls(4096, 0) == 2048
    assert most_calls(100, 3996) == 2048
    assert most_calls(64, 0) >= 64, "little is not cut"
