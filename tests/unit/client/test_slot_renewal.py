"""When a lease is renewed: against a replica that cuts leases at five minutes in all, in time that a test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.calls.slot_tokens import MAX_LEASE_S
from slotmesh.client.slots.lease import RenewalPlan


def test_at_a_third_of_the_lease() -> None:
    plan = RenewalPlan(1_000.0, 9.0, 9.0)
    assert plan.after_grant(1_000.0, 9.0) == 1_003.0
    assert plan.ends == 1_009.0
    assert plan.after_grant(1_003.0, 9.0) == 1_006.0


def test_a_lease_that_was_cut_is_the_last_one() -> None:
    plan = RenewalPlan(1_000.0, 9.0, 9.0)
    assert plan.after_grant(1_296.0, 4.0) is None
    assert plan.ends == 1_300.0


def test_after_a_failure_again_while_the_lease_lasts() -> None:
    plan = RenewalPlan(0.0, 9.0, 9.0)
    now, tries = 3.0, 0
    while (due := plan.after_failure(now)) is not None:
        assert now < due < plan.ends
        now, tries = due, tries + 1
    assert 5 <= tries < 20
    assert plan.ends - now < 0.1


def test_a_renewal_without_a_reply_may_have_been_granted() -> None:
    """Then the lease goes on for a while, and it is asked for again soon after the end that is known."""
    plan = RenewalPlan(0.0, 9.0, 9.0)
    assert plan.patience_s(3.0) == 6.0
    due = plan.after_failure(9.0, is_refused=False)
    assert due is not None
    assert 9.0 < due < 12.0, "granted at the third second, it lasts until then"
    assert plan.patience_s(due) == 3.0
    assert plan.after_grant(due, 9.0) == due + 3.0


def test_without_any_reply_it_is_given_up_after_five_minutes() -> None:
    plan = RenewalPlan(0.0, 9.0, 9.0)
    now, asked, tries = 9.0, 3.0, 0
    while (due := plan.after_failure(now, is_refused=False)) is not None:
        assert due < asked + 9.0, "each of them may have been granted"
        now, asked, tries = due + plan.patience_s(due), due, tries + 1
    assert MAX_LEASE_S - 9.0 < now <= MAX_LEASE_S
    assert tries < 100


def test_refused_after_an_unknown_one_it_is_asked_for_less_and_less_often() -> None:
    plan = RenewalPlan(0.0, 9.0, 9.0)
    now, tries = plan.after_failure(9.0, is_refused=False), 0
    while now is not None:
        now, tries = plan.after_failure(now), tries + 1
    assert 3 <= tries < 30


def test_a_reply_that_took_its_time_changes_nothing() -> None:
    plan = RenewalPlan(1_000.0, 9.0, 9.0)
    assert plan.after_grant(1_003.0, 6.0) == 1_005.0


@given(ttl_s=st.floats(0.5, MAX_LEASE_S), late=st.floats(0, 0.5), reply=st.floats(0, 0.3))
@pytest.mark.parametrize("start", [0.0, 1e6])
def test_five_minutes_in_all(start: float, ttl_s: float, late: float, reply: float) -> None:
    """However late each renewal is and however long its reply takes, as shares of what there is for it."""
    last, reply_s = start + MAX_LEASE_S, reply * min(ttl_s, 1.0)
    plan = RenewalPlan(start, ttl_s, ttl_s)
    ends, due, asked = start + ttl_s, plan.after_grant(start, ttl_s), 0
    while due is not None:
        now = due + late * (ends - due)
        assert now < ends, "before the lease ends"
        asked += 1
        ends = min(now + ttl_s, last)
        heard = now + reply_s
        due = plan.after_grant(heard, ends - heard)
    assert ends >= last - 1.0, "all that can be had, but for a second"
    assert asked <= 5 * MAX_LEASE_S / ttl_s + 5
