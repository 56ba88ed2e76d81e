"""Causes of failed connections that no test of real servers produces on every machine."""

from __future__ import annotations

import pytest

from slotmesh.security.handshakes import Attempt, handshake_problem

DETAILS = (
    "errors resolving no.such.host:7071: [field:hostname lookup error:address lookup failed: Domain name not found]",
    "DNS resolution failed for no.such.host:7071: C-ares status is not ARES_SUCCESS",
)


@pytest.mark.parametrize("details", DETAILS)
@pytest.mark.parametrize("by_tls", [False, True])
def test_a_name_that_does_not_resolve_is_named_and_may_resolve_later(details: str, by_tls: bool) -> None:
    problem = handshake_problem(details, Attempt(by_tls=by_tls, server="router"))
    assert problem is not None
    assert "the name of the host does not resolve" in problem.text
    assert not problem.is_certain
