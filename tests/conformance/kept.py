"""A case as a test."""

from __future__ import annotations

import pytest

from slotmesh.conformance.adapter import AdapterProcess
from slotmesh.conformance.case import Case
from slotmesh.conformance.player import play
from slotmesh.conformance.report import PlayedCase, Verdict


async def require_kept(case: Case, adapter: AdapterProcess) -> None:
    """Fails the test, with what people see of it, unless the client keeps the case."""
    problem = await play(case, adapter)
    if problem is not None:
        pytest.fail("\n".join(PlayedCase(case, Verdict.FAILED, problem=problem).lines()), pytrace=False)
