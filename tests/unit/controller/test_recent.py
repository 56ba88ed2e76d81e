"""Which earlier report stands beside the newest: one of two seconds before, or the next older one."""

from __future__ import annotations

import pytest

from controller_service.core.loads import BackendLoad, EndpointLoad, RecentReports, RouterLoad


def reports(*times: float) -> RecentReports[float]:
    recent = RecentReports[float]()
    for at in times:
        recent.add(at, at)
    return recent


@pytest.mark.parametrize(
    ("times", "earlier"),
    [
        ((), None),
        ((5.0,), None),
        ((5.0, 5.1), 5.0),
        ((0.0, 1.0, 2.0, 3.0), 1.0),
        ((0.0, 0.99, 1.98, 2.97), 0.0),
        ((0.0, 1.0, 60.0), 1.0),
        ((0.0, 60.0), 0.0),
        ((0.0, 1.0, 60.0, 61.0, 62.0), 60.0),
        (tuple(at / 10 for at in range(100)), 7.5),
    ],
)
def test_the_earlier_report_is_the_youngest_that_is_old_enough(times: tuple[float, ...], earlier: float | None) -> None:
    recent = reports(*times)
    assert recent.newest == (times[-1] if times else None)
    assert recent.newest_at == recent.newest
    assert recent.earlier == earlier


def test_few_are_kept_of_a_member_that_reports_all_the_time() -> None:
    recent = RecentReports[int]()
    for number in range(100_000):
        recent.add(number, number / 10_000)
        assert len(recent._kept) <= 6


def load(run_id: str = "a", sent: int = 5, accepted: int = 7) -> RouterLoad:
    return RouterLoad(
        run_id=run_id,
        backends=(BackendLoad(backend="b", queued=0, ongoing=0, sent=sent),),
        endpoints=(EndpointLoad(endpoint="e", accepted=accepted, failed=0, waiting=0),),
    )


def test_counting_that_begins_anew_is_seen() -> None:
    assert load().is_since(load())
    assert load(sent=6, accepted=8).is_since(load())
    assert load().is_since(RouterLoad(run_id="a"))
    assert not load(run_id="b", sent=6).is_since(load())
    assert not load(run_id="", sent=4).is_since(load(run_id=""))
    assert not load(run_id="", accepted=6).is_since(load(run_id=""))
