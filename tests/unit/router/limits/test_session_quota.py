"""Sessions of one caller: those that are connected, and those that were left, each counted once."""

from __future__ import annotations

from router_service.core.limits.quotas import KEPT_S, SessionQuota
from slotmesh.errors import Reason

WHO = "client/a"


def test_sessions_that_were_left_count_until_they_are_forgotten() -> None:
    sessions = SessionQuota(3)
    for number in range(3):
        assert sessions.opened(WHO, f"s{number}", 0.0) is None
        sessions.ended(WHO, f"s{number}", 1.0, in_order=False)
    failure = sessions.opened(WHO, "s3", 2.0)
    assert failure is not None
    assert failure.reason is Reason.QUOTA_EXCEEDED
    assert sessions.opened("client/b", "s3", 2.0) is None
    assert sessions.opened(WHO, "s3", 1.0 + KEPT_S) is None
    assert sessions.quota.held == {WHO: 1, "client/b": 1}


def test_a_session_that_goes_on_counts_once() -> None:
    sessions = SessionQuota(1)
    for connection in range(4):
        assert sessions.opened(WHO, "s", float(connection)) is None
        if connection % 2:
            sessions.ended(WHO, "s", float(connection), in_order=False)
    assert sessions.quota.held == {WHO: 1}
    assert sessions.opened(WHO, "s", 10.0) is None
    assert sessions.opened("", "other", 3.0 + KEPT_S) is None  # the end of before is not that of now
    assert sessions.quota.held == {WHO: 1}
    sessions.ended(WHO, "s", 100.0, in_order=True)
    assert not sessions.quota.held


def test_sessions_that_end_in_order_make_room_at_once() -> None:
    sessions = SessionQuota(1)
    for number in range(100):
        assert sessions.opened(WHO, f"s{number}", 0.0) is None
        sessions.ended(WHO, f"s{number}", 0.0, in_order=True)
    assert not sessions.quota.held


def test_who_is_not_known_has_no_quota() -> None:
    sessions = SessionQuota(1)
    for number in range(10):
        assert sessions.opened("", f"s{number}", 0.0) is None
        sessions.ended("", f"s{number}", 0.0, in_order=False)
    assert not sessions.quota.held
