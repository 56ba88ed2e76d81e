"""How much may wait, and when a caller that was refused should come again."""

from __future__ import annotations

import pytest

from router_service.core.limits.admission import FIRST_RETRY_DELAY_S, FLOOR_BYTES, FLOOR_CALLS, Account
from router_service.core.limits.tenant_limits import TenantAccount, TenantFigures
from router_service.core.runs import Caller, RouterRun
from slotmesh.errors import Executed, Reason
from tests.unit.router.parts import caller, run


def account(calls: int = 10**6, size: int = 10**9, queue_time_s: float = 30.0) -> Account:
    return Account("b", max_calls=calls, max_bytes=size, max_queue_time_s=queue_time_s)


def filled(calls: int = 10**6, size: int = 10**9, *, payload: int = 1) -> Account:
    """One that a single flow has filled."""
    each = account(calls, size)
    flood = caller()
    while run(count=1000, size=payload, by=flood).charge(each):
        pass
    return each


@pytest.mark.parametrize(("bound", "offered", "fits"), [(5, 5, 5), (5, 6, 5), (5, 1, 1), (0, 1, 0), (1, 2, 1)])
def test_calls_are_bounded_exactly(bound: int, offered: int, fits: int) -> None:
    each = account(calls=bound)
    assert run(count=offered).charge(each) == fits
    assert each.calls == fits


@pytest.mark.parametrize(("bound", "offered", "fits"), [(10, 4, 3), (12, 4, 4), (2, 1, 0), (3, 1, 1), (0, 1, 0)])
def test_bytes_are_bounded_exactly(bound: int, offered: int, fits: int) -> None:
    each = account(size=bound)
    assert run(count=offered, size=3).charge(each) == fits
    assert each.size == 3 * fits


def test_a_flow_fills_a_queue_to_its_bounds_and_no_further() -> None:
    assert filled(calls=1000).calls == 1000
    assert filled(size=1000).size == 1000
    assert filled(size=10**6, payload=7).size == 10**6 // 7 * 7


def test_a_full_queue_says_what_fills_it() -> None:
    each = account(calls=5, size=100)
    run(count=3, size=2).charge(each)
    assert run(count=3, size=2).charge(each) == 2
    failure = each.full(0.0, 0.5)
    assert (failure.reason, failure.executed) == (Reason.QUEUE_FULL, Executed.NO)
    assert "5 of 5 calls and 10 of 100 bytes" in failure.message
    assert failure.metadata == {"backend": "b"}


def test_a_quiet_flow_is_let_in_over_a_queue_that_another_one_has_filled() -> None:
    each, quiet = filled(calls=1000), caller()
    admitted = [run(by=quiet).charge(each) for _ in range(FLOOR_CALLS + 4)]
    assert admitted == [1] * FLOOR_CALLS + [0] * 4
    assert each.waiting_of(quiet.flow) == FLOOR_CALLS
    one_more = caller()
    assert run(count=100, by=one_more).charge(each) == FLOOR_CALLS


def test_a_quiet_flow_is_let_in_over_bytes_that_another_one_has_filled() -> None:
    each, quiet = filled(size=2**20, payload=1024), caller()
    offered = [run(size=FLOOR_BYTES // 4, by=quiet) for _ in range(6)]
    assert [one.charge(each) for one in offered] == [1] * 4 + [0] * 2
    offered[0].release(1)
    assert [one.charge(each) for one in offered[4:]] == [1, 0], "what has left counts no more"


@pytest.mark.parametrize(("calls", "floor"), [(1, 1), (4, 1), (16, 2), (80, 10), (128, 16), (1000, 16)])
def test_the_floor_is_little_beside_a_small_queue(calls: int, floor: int) -> None:
    assert run(count=100, by=caller()).charge(filled(calls=calls)) == floor


@pytest.mark.parametrize("calls", [1, 3, 16, 200])
def test_many_quiet_flows_never_pass_twice_the_bounds(calls: int) -> None:
    each = filled(calls=calls)
    for _ in range(3 * calls):
        run(count=FLOOR_CALLS, by=caller()).charge(each)
    assert each.calls == 2 * calls
    each = filled(size=2**20, payload=1024)
    for _ in range(100):
        run(count=4, size=FLOOR_BYTES // 4, by=caller()).charge(each)
    assert each.size == 2 * 2**20


def test_what_was_admitted_before_is_never_refused_for_room() -> None:
    each, back = filled(calls=5), run(count=50, size=3)
    back.charge_all(each)
    assert back.account is each
    assert (each.calls, each.size) == (55, 155)
    assert run(by=caller()).charge(each) == 0, "over twice the bound nobody new comes in"


def test_a_release_gives_back_what_was_charged() -> None:
    each, by = account(calls=5, size=100), caller()
    mine = run(count=5, size=2, by=by)
    mine.charge(each)
    mine.release(2)
    mine.cursor = 2
    assert (each.calls, each.size, each.waiting_of(by.flow)) == (3, 6, 3)
    mine.release(3)
    assert (each.calls, each.size, each.waiting_of(by.flow)) == (0, 0, 0)
    assert run(count=6, by=by).charge(each) == 5


def test_who_always_has_something_waiting_is_charged_for_what_waits_and_no_more() -> None:
    """Its share is never empty: what it gives back is all that tells how much it has."""
    each, by = account(calls=60, size=600), caller()
    tenants = [None, *(TenantAccount("e", "", name, TenantFigures()) for name in "abc")]
    newest = [_of(tenant, by) for tenant in tenants]
    for mine in newest:
        assert mine.charge(each) == 3
    for number in range(100):
        at = number % len(tenants)
        before, newest[at] = newest[at], _of(tenants[at], by)
        assert newest[at].charge(each) == 3, number
        before.release(3)
        assert (each.calls, each.size, each.waiting_of(by.flow)) == (12, 120, 12)
    for mine in newest:
        mine.release(1)
        mine.cursor = 1
        mine.release(2)
    assert (each.calls, each.size, each.waiting_of(by.flow)) == (0, 0, 0)


def _of(tenant: TenantAccount | None, by: Caller) -> RouterRun:
    mine = run(count=3, size=10, by=by)
    mine.tenant = tenant
    return mine


def test_only_the_waiting_part_of_a_run_is_charged() -> None:
    each, mine = account(), run(count=5, size=2)
    mine.cursor = 3
    assert mine.charge(each) == 2
    assert (each.calls, each.size) == (2, 4)


# -- when to come again ----------------------------------------------------------------------------------------------


def drained(waiting: int, per_s: float, seconds: float = 3.0) -> tuple[Account, float]:
    """An account with this many calls waiting, out of which so many a second were sent; and the time now."""
    each = account()
    queue = run(count=waiting + int(per_s * seconds))
    queue.charge(each)
    each.waits(100.0)
    steps = int(seconds * 50)
    now = 100.0
    for step in range(steps):
        now = 100.0 + (step + 1) / 50
        count = int(per_s * seconds * (step + 1) / steps) - queue.cursor
        each.drained(count, now)
        queue.release(count)
        queue.cursor += count
    assert each.calls == waiting
    return each, now


@pytest.mark.parametrize(("waiting", "per_s", "delay_s"), [(1000, 1000, 1.0), (5000, 1000, 5.0), (1000, 5000, 0.2)])
def test_the_delay_is_what_the_queue_needs_to_drain(waiting: int, per_s: float, delay_s: float) -> None:
    each, now = drained(waiting, per_s)
    assert each.retry_delay_s(now) == pytest.approx(delay_s, rel=0.1)


def test_the_delay_grows_with_the_queue() -> None:
    delays = [each.retry_delay_s(now) for each, now in (drained(waiting, 500) for waiting in (100, 200, 800, 3000))]
    assert delays == sorted(set(delays))


def test_the_delay_follows_the_rate_of_the_last_second() -> None:
    each, now = drained(10_000, 1000)
    mine = run(count=20_000)
    mine.cursor = 0
    mine.charge(each)
    before = each.retry_delay_s(now)
    for _ in range(150):
        now += 0.02
        each.drained(80, now)  # four times as fast
    assert each.retry_delay_s(now) == pytest.approx(before / 4, rel=0.1)


def test_the_delay_has_bounds() -> None:
    each, now = drained(1, 5000)
    assert each.retry_delay_s(now) == 0.01
    each, now = drained(10**5, 1)
    assert each.retry_delay_s(now) == 30.0


def test_where_nothing_ever_left_the_delay_grows_with_the_wait() -> None:
    each = account(queue_time_s=20.0)
    run().charge(each)
    each.waits(50.0)
    assert each.retry_delay_s(50.0) == FIRST_RETRY_DELAY_S
    assert each.retry_delay_s(55.0) == pytest.approx(5.0)
    assert each.retry_delay_s(500.0) == 20.0


def test_time_in_which_nothing_waits_does_not_slow_the_queue_down() -> None:
    each, now = drained(10, 1000)
    before = each.retry_delay_s(now)
    rest = run(count=10)
    rest.account = each
    each.drained(10, now)
    rest.release(10)
    assert each.calls == 0
    now += 60.0
    run(count=10).charge(each)
    each.waits(now)
    assert each.retry_delay_s(now) == pytest.approx(before, rel=0.1)


def test_delays_vary_by_a_fifth_so_that_callers_do_not_come_back_together() -> None:
    each, now = drained(1000, 1000)
    middle = each.retry_delay_s(now)
    delays = [each.full(now, number / 1000).retry_delay_s or 0.0 for number in range(1000)]
    assert min(delays) == pytest.approx(0.8 * middle)
    assert max(delays) == pytest.approx(1.2 * middle, rel=0.001)
    assert sum(delays) / len(delays) == pytest.approx(middle, rel=0.001)
