"""How far the calls of one caller may be ahead together."""

from __future__ import annotations

from random import Random

import pytest

from router_service.core.callers import ALONE, CREDITS, HALF, SHARED_BYTES, SMALL_BYTES, START_WINDOW, level_of
from router_service.core.runs import Caller


def bound(calls: int) -> int:
    return SHARED_BYTES * calls.bit_length()


def ahead(caller: Caller) -> tuple[int, int]:
    """Values and bytes that all of its calls may be ahead."""
    given = [CREDITS[level] for level in caller.streams.values()]
    return sum(credit.values for credit in given), sum(credit.bytes for credit in given)


def test_one_call_has_all_and_others_less_and_less() -> None:
    caller = Caller(START_WINDOW)
    given = [CREDITS[caller.stream([call_id])] for call_id in range(1, 9)]
    assert given == [ALONE, *[HALF] * 6, CREDITS[3]]
    sizes = [credit.bytes for credit in CREDITS]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("calls", [1, 2, 7, 100, 1_000, 20_000])
@pytest.mark.parametrize("at_once", [False, True])
def test_together_they_have_little_more_than_a_few_have(calls: int, at_once: bool) -> None:
    caller = Caller(START_WINDOW)
    if at_once:
        caller.stream(range(calls))
    for call_id in range(calls):
        caller.stream([call_id])
    values, size = ahead(caller)
    assert size <= bound(calls)
    assert values <= size // SMALL_BYTES + calls


def test_that_holds_whichever_of_them_end() -> None:
    random = Random(7)
    caller = Caller(START_WINDOW)
    for call_id in range(1, 5_000):
        caller.stream([call_id])
        if len(caller.streams) > 600 or random.random() < 0.3:
            left = random.sample(sorted(caller.streams), random.randint(0, len(caller.streams) // 2))
            for each in left:
                del caller.streams[each]
        assert ahead(caller)[1] <= bound(max(1, len(caller.streams)))


def test_a_call_that_is_sent_again_is_still_one_call() -> None:
    caller = Caller(START_WINDOW)
    assert [caller.stream([7]), caller.stream([7])] == [0, 0]
    for each in (7, 8):
        caller.streams.pop(each, None)
    assert not caller.streams


def test_every_credit_allows_a_value() -> None:
    assert min(credit.values for credit in CREDITS) >= 1
    assert min(credit.bytes for credit in CREDITS) >= 1
    assert level_of(10**9) == len(CREDITS) - 1
