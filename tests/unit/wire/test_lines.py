"""What waits behind a large payload of its own call."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from slotmesh.streams.chunks import Lines


def test_only_calls_with_a_large_payload_wait() -> None:
    lines: Lines[str] = Lines()
    assert not lines
    lines.begin(2)
    assert lines
    assert 2 in lines
    assert 1 not in lines
    assert not lines.wait(1, "passes")
    assert lines.wait(2, "a")
    assert lines.wait(2, "b")
    assert lines.end(2) == deque(["a", "b"])
    assert not lines
    assert not lines.wait(2, "c")


def test_whom_they_concern() -> None:
    lines: Lines[str] = Lines()
    for call_id in (9, 3, 5):
        lines.begin(call_id)
    assert lines.concern([1, 5])
    assert not lines.concern(range(6, 9))
    assert lines.among(range(3, 9)) == [3, 5]
    lines.clear()
    assert not lines
    assert lines.among(range(3, 9)) == []


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans())))
def test_what_a_call_says_leaves_in_order(said: list[tuple[int, bool]]) -> None:
    """Large things, which take until the end, and small ones: the order of each call is kept, whatever is large."""
    lines: Lines[tuple[int, bool]] = Lines()
    left: dict[int, list[int]] = {}
    under_way: dict[int, int] = {}

    def say(call_id: int, number: int, *, is_large: bool) -> None:
        if lines.wait(call_id, (number, is_large)):
            return
        if is_large:
            lines.begin(call_id)
            assert under_way.setdefault(call_id, number) == number, "two at once"
        else:
            left.setdefault(call_id, []).append(number)

    for number, (call_id, is_large) in enumerate(said):
        say(call_id, number, is_large=is_large)
    while under_way:
        call_id, number = under_way.popitem()
        left.setdefault(call_id, []).append(number)
        for waited, is_large in lines.end(call_id):
            say(call_id, waited, is_large=is_large)
    assert not lines
    for call_id, numbers in left.items():
        assert numbers == [number for number, (of, _) in enumerate(said) if of == call_id]
    assert sum(map(len, left.values())) == len(said)
