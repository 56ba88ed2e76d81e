"""How fast a queue drains, and the retry delays of calls that find it full."""

from __future__ import annotations

import pytest

from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.limits.admission import FIRST_RETRY_DELAY_S, Account
from router_service.core.limits.estimates import DrainRate
from router_service.core.runs import Caller, RouterRun

BOUND = 1000


def drain(rate: DrainRate, begin: float, seconds: float) -> float:
    """100 calls a second, while something waits all the time; returns when it ended."""
    rate.waits(begin)
    for step in range(1, round(seconds * 10) + 1):
        rate.sent(10, begin + step / 10)
    return begin + seconds


def test_it_is_what_was_sent_a_second() -> None:
    rate = DrainRate(1.0)
    assert rate.per_s(5.0) == 0
    end = drain(rate, 5.0, 3.0)
    assert rate.per_s(end) == pytest.approx(100, rel=0.1)


def test_time_in_which_nothing_waits_does_not_count() -> None:
    rate = DrainRate(1.0)
    end = drain(rate, 0.0, 3.0)
    rate.empty()
    before = rate.per_s(end)
    assert rate.per_s(end + 60.0) == before
    rate.waits(end + 60.0)
    assert rate.per_s(end + 60.0) == before
    assert rate.waiting_s(end + 60.5) == pytest.approx(0.5)
    assert rate.per_s(end + 62.0) < before / 4, "nothing is sent although something waits"


def full_account() -> Account:
    account = Account("b", BOUND, 2**30, 30.0)
    run = RouterRun(
        1, Caller(Window(BOUND, 2**30)), "e", RouterCallOptions(), range(1, BOUND + 1), [b"x"] * BOUND, 100.0
    )
    assert run.charge(account) == BOUND
    account.waits(100.0)
    return account


def test_a_queue_that_was_never_sent_from_asks_to_wait_as_long_as_it_has_been_stuck() -> None:
    account = full_account()
    assert account.retry_delay_s(100.0) == FIRST_RETRY_DELAY_S
    assert account.retry_delay_s(104.0) == pytest.approx(4.0)
    assert account.retry_delay_s(1000.0) == 30.0


def test_a_first_burst_is_not_sent_away_for_longer_than_it_takes() -> None:
    account = full_account()
    for step in range(1, 6):
        account.drained(100, 100.0 + step * 0.05)  # 2,000 a second
    assert account.retry_delay_s(100.25) == pytest.approx(0.5, rel=0.3)
