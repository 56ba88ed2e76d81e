"""Quotas: what one caller has never passes what one may have, and what was taken is given back."""

from __future__ import annotations

import random

from slotmesh.errors import Reason
from slotmesh.security.quotas import BURST_S, Quota, QuotaKind, RateQuota


def test_who_has_all_is_refused_and_others_are_not() -> None:
    quota = Quota(QuotaKind.CALLS, 10, "max_calls_per_caller")
    quota.take("client/a", 8)
    assert quota.refusal("client/a", 2) is None
    failure = quota.refusal("client/a", 3)
    assert failure is not None
    assert failure.reason is Reason.QUOTA_EXCEEDED
    assert failure.metadata["quota"] == "calls"
    assert failure.retry_delay_s is not None
    assert "client/a has 8 calls" in failure.message
    assert "max_calls_per_caller" in failure.message
    assert quota.refusal("client/b", 10) is None
    assert quota.refused == 1
    quota.give("client/a", 8)
    assert quota.refusal("client/a", 10) is None


def test_who_is_not_known_is_not_counted() -> None:
    quota = Quota(QuotaKind.STREAMS, 1, "max_streams_per_caller")
    for _ in range(3):
        assert quota.refusal("") is None
        quota.take("")
    quota.give("")
    assert not quota.held


def test_nobody_is_kept_who_has_nothing() -> None:
    quota, chance = Quota(QuotaKind.CALLS, 50, "s"), random.Random(7)
    held = [0] * 5
    for _ in range(2_000):
        who, amount = chance.randrange(5), chance.randrange(8)
        if chance.random() < 0.6 and quota.refusal(f"client/{who}", amount) is None:
            quota.take(f"client/{who}", amount)
            held[who] += amount
        elif held[who] >= amount:
            quota.give(f"client/{who}", amount)
            held[who] -= amount
        assert quota.held == {f"client/{at}": each for at, each in enumerate(held) if each}
        assert max(held) <= 50
    for who, each in enumerate(held):
        quota.give(f"client/{who}", each)
    assert not quota.held


def test_a_rate_saves_up_a_burst_and_no_more() -> None:
    quota = RateQuota(QuotaKind.CHANGES, 5, "max_changes_per_caller")
    burst = round(5 * BURST_S)
    assert all(quota.take("operator/o", 100.0) is None for _ in range(burst))
    failure = quota.take("operator/o", 100.0)
    assert failure is not None
    assert failure.reason is Reason.QUOTA_EXCEEDED
    assert failure.retry_delay_s is not None
    assert quota.take("operator/p", 100.0) is None
    assert quota.take("operator/o", 100.0 + failure.retry_delay_s) is None
    assert quota.take("operator/o", 100.0 + failure.retry_delay_s) is not None
    later = 100.0 + 100 * BURST_S
    assert sum(quota.take("operator/o", later) is None for _ in range(2 * burst)) == burst


def test_a_rate_forgets_those_who_have_all_of_it_again() -> None:
    quota = RateQuota(QuotaKind.CHANGES, 5, "s")
    for number in range(5_000):
        assert quota.take(f"operator/{number}", float(number)) is None
    assert len(quota._left) < 2_100


def test_what_was_refused_costs_nothing() -> None:
    """Whoever tries again and again has to wait no longer than who waits."""
    patient, eager = (RateQuota(QuotaKind.CHANGES, 5, "s") for _ in range(2))
    for quota in (patient, eager):
        while quota.take("operator/o", 100.0) is None:
            pass
    for number in range(1_000):
        assert eager.take("operator/o", 100.0 + number * 1e-4) is not None
    for quota in (patient, eager):
        assert quota.take("operator/o", 100.21) is None
        assert quota.take("operator/o", 100.21) is not None
    assert (patient.refused, eager.refused) == (2, 1_002)


def test_a_refusal_takes_nothing_of_a_quota() -> None:
    quota = Quota(QuotaKind.CALLS, 10, "s")
    for number in range(1, 4):
        assert quota.refusal("client/a", 11) is not None
        assert quota.refusal("client/a", 10) is None
        assert (quota.held, quota.refused) == ({}, number)
    assert not quota.is_full("client/a")
