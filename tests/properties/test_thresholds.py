"""Dynamic thresholds: what a holder may add, beside the rule itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.calls.fair_shares import DynamicThreshold
from tests.support.examples import examples

THRESHOLDS = st.builds(DynamicThreshold, times=st.integers(1, 64), per=st.integers(1, 64))
AMOUNTS = st.integers(0, 10**12)


@settings(max_examples=examples(300))
@given(threshold=THRESHOLDS, held=AMOUNTS, free=AMOUNTS)
def test_room_is_the_most_that_the_rule_allows(threshold: DynamicThreshold, held: int, free: int) -> None:
    room = threshold.room(held, free)
    assert threshold.allows(held + room, free - room)
    assert not threshold.allows(held + room + 1, free - room - 1)
    assert (room >= 0) == threshold.allows(held, free)
    assert room <= free


@settings(max_examples=examples(100))
@given(
    threshold=st.builds(DynamicThreshold, times=st.integers(1, 8), per=st.integers(1, 4)),
    most=st.integers(1, 1_000),
    holders=st.integers(1, 8),
)
def test_holders_that_want_all_they_may_have_get_equal_parts_and_leave_something_free(
    threshold: DynamicThreshold, most: int, holders: int
) -> None:
    held, free, is_over = [0] * holders, most, False
    while not is_over:
        is_over = True
        for at, each in enumerate(held):
            if threshold.room(each, free) > 0:
                held[at] += 1
                free -= 1
                is_over = False
    assert max(held) - min(held) <= 1
    assert sum(held) + free == most
    assert free * threshold.times >= max(held) * threshold.per
