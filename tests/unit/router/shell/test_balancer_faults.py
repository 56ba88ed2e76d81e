"""The log of faults of balancers: one line a minute for each backend, balancer and cause, without texts of calls."""

from __future__ import annotations

import pytest

from router_service.core.counters import PickFault
from router_service.shell.balancer_loading import FAULT_INTERVAL_S, FaultLog


def test_a_fault_is_logged_once_in_a_while_for_each_backend_balancer_and_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    log = FaultLog(lambda: now[0])
    of_first = ("b", "mine:A", PickFault.RAISED)
    for backend, balancer, cause in (
        of_first,
        of_first,
        ("c", "mine:A", PickFault.RAISED),
        ("b", "mine:B", PickFault.RAISED),
        ("b", "mine:A", PickFault.NONE),
    ):
        log(backend, balancer, cause, ValueError("a key of a call"))
    assert len(caplog.messages) == 4
    now[0] = FAULT_INTERVAL_S - 0.1
    log(*of_first, None)
    assert len(caplog.messages) == 4
    now[0] = FAULT_INTERVAL_S
    log(*of_first, None)
    assert len(caplog.messages) == 5
    assert "ValueError" in caplog.text
    assert "a key" not in caplog.text
