"""What sessions remember of their lanes: little, whatever their keys; and what they forget counts against a call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replica_service.core.session_records import LaneBook, Progress


def test_a_call_behind_which_another_has_started_is_passed() -> None:
    progress = Progress(LaneBook())
    progress.started("e", "k", 5)
    assert progress.is_passed("e", "k", 4, again=False)
    assert not progress.is_passed("e", "k", 5, again=False)
    assert not progress.is_passed("e", "j", 4, again=True)
    assert not progress.is_passed("f", "k", 4, again=True)


def test_lanes_of_all_sessions_are_bounded_and_the_largest_session_forgets() -> None:
    book = LaneBook(max_lanes=64)
    small, large = Progress(book), Progress(book)
    for number in range(4):
        small.started("e", f"s{number}", number + 1)
    for number in range(1_000):
        large.started("e", f"l{number}" + "x" * 1024, number + 1)
    assert book.lanes == len(small) + len(large) <= 64
    assert len(small) == 4


def test_keys_are_not_kept() -> None:
    book = LaneBook()
    progress = Progress(book)
    progress.started("e", "k" * 1024, 1)
    assert all(isinstance(lane, int) for lane in progress._last)


def test_a_session_that_is_forgotten_frees_its_lanes() -> None:
    book = LaneBook(max_lanes=8)
    gone, other = Progress(book), Progress(book)
    for number in range(8):
        gone.started("e", str(number), number + 1)
    book.left(gone)
    assert book.lanes == 0
    for number in range(8):
        other.started("e", str(number), number + 1)
    assert len(other) == 8


def test_a_call_that_is_sent_again_in_a_lane_that_was_forgotten_counts_as_passed() -> None:
    progress = Progress(LaneBook(max_lanes=4))
    progress.started("e", "k", 2)
    for number in range(3, 9):
        progress.started("e", str(number), number)
    assert not progress.is_passed("e", "k", 1, again=False), "what comes for the first time comes in order"
    assert progress.is_passed("e", "k", 1, again=True)
    progress.resumed()
    assert progress.is_passed("e", "k", 1, again=False)
    assert not progress.is_passed("e", "k", 9, again=False), "it was sent after all that has started"


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=80), st.integers(1, 6))
def test_no_call_that_is_too_late_may_run(steps: list[tuple[int, bool]], max_lanes: int) -> None:
    """Of calls sent before the newest connection none runs that is late by a model that forgets nothing."""
    progress, model = Progress(LaneBook(max_lanes)), dict[int, int]()
    sent_before = 0
    for call_id, (lane, resumes) in enumerate(steps, 1):
        progress.started("e", str(lane), call_id)
        model[lane] = call_id
        if resumes:
            progress.resumed()
            sent_before = call_id
        for late in range(1, sent_before + 1):
            for each, last in model.items():
                if late < last:
                    assert progress.is_passed("e", str(each), late, again=False)
