"""Frames of calls of many callers, one call each."""

from __future__ import annotations

from collections import deque

import pytest

from slotmesh.streams.pacing import EMPTY_TURNS, ENOUGH_CALLS, LONE_FRAMES, MOST_S, Gathering


def met() -> Gathering:
    """A frame of two calls has left."""
    gathering = Gathering()
    gathering.left(2, is_alone=True)
    return gathering


def looks(gathering: Gathering, calls: int, now: float = 0.0) -> int:
    """How often in a row the frame waits for another turn."""
    count = 0
    while gathering.waits(calls, now):
        count += 1
    return count


def test_a_caller_alone_never_waits() -> None:
    gathering = Gathering()
    for _ in range(1000):
        assert not gathering.waits(1, 0.0)
        gathering.left(1, is_alone=True)


def test_where_calls_meet_a_frame_waits_until_some_turns_have_brought_none() -> None:
    gathering = met()
    assert looks(gathering, 1) == EMPTY_TURNS
    gathering.left(1, is_alone=True)
    assert looks(gathering, 1) == EMPTY_TURNS, "the next frame waits anew"


def test_each_call_that_joins_lets_the_frame_wait_again() -> None:
    gathering = met()
    for calls in range(1, 10):
        for _ in range(EMPTY_TURNS - 1):
            assert gathering.waits(calls, 0.0)
    assert looks(gathering, 10) == EMPTY_TURNS


def test_a_frame_waits_no_longer_than_that_however_many_calls_join() -> None:
    gathering = met()
    assert gathering.waits(1, 10.0)
    assert gathering.waits(2, 10.0 + 0.9 * MOST_S)
    assert not gathering.waits(3, 10.0 + MOST_S)
    gathering.left(3, is_alone=True)
    assert gathering.waits(1, 10.0 + MOST_S), "the next one has its own time"


def test_a_frame_with_enough_calls_leaves_at_once() -> None:
    assert not met().waits(ENOUGH_CALLS, 0.0)


def test_calls_meet_where_another_one_is_unanswered() -> None:
    gathering = Gathering()
    gathering.left(1, is_alone=False)
    assert gathering.waits(1, 0.0)


def test_after_many_lone_frames_calls_do_not_meet_any_more() -> None:
    gathering = met()
    for _ in range(LONE_FRAMES):
        assert looks(gathering, 1)
        gathering.left(1, is_alone=True)
    assert not gathering.waits(1, 0.0)


def calls_a_frame(gathering: Gathering, callers: int, turns: int) -> float:
    """A loop that takes in a call each turn; the calls of a frame are answered together, and come again."""
    arriving = deque(range(callers))
    pending: list[int] = []
    answers: deque[tuple[int, list[int]]] = deque()
    frames = sent = 0
    for turn in range(turns):
        if answers and answers[0][0] <= turn:
            arriving.extend(answers.popleft()[1])
        if arriving:
            pending.append(arriving.popleft())
        if pending and not gathering.waits(len(pending), turn * 2e-5):
            gathering.left(len(pending), is_alone=not answers)
            answers.append((turn + 15, pending))
            if turn > turns // 2:
                frames, sent = frames + 1, sent + len(pending)
            pending = []
    return sent / frames


@pytest.mark.parametrize("callers", [1, 2, 8, 32])
def test_the_same_load_comes_to_the_same_frames_whatever_was_before(callers: int) -> None:
    cold, warm = calls_a_frame(Gathering(), callers, 4000), calls_a_frame(met(), callers, 4000)
    assert cold == pytest.approx(warm, rel=0.05)
    assert warm > 0.6 * callers
