"""Why a router has left: what the controller has seen, and what the router has reported."""

from __future__ import annotations

import pytest

from controller_service.core.observed import routers
from controller_service.core.observed.state import Observed, ObservedRouter


def reported(observed: Observed, reason: str) -> Observed:
    report = {"generation": "g", "revision": 1, "linked": frozenset()}
    return routers.reported(observed, "r", **report, end_reason=reason, now=1.0).observed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reasons", "message"),
    [
        ([], "said goodbye"),
        ([""], "said goodbye"),
        (["", "SIGTERM"], "said goodbye; its own reason: SIGTERM"),
        (["SIGTERM", ""], "said goodbye; its own reason: SIGTERM"),
    ],
)
def test_a_reason_that_was_reported_once_counts(reasons: list[str], message: str) -> None:
    observed = routers.attached(Observed(), ObservedRouter(router_id="r", address="h:1", started_at=0.0)).observed
    for reason in reasons:
        observed = reported(observed, reason)
    left = routers.left(observed, "r", "said goodbye")
    assert [it.message for it in left.notices] == [message]
    assert not left.observed.routers
