"""A case as a test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from _pytest.mark.structures import ParameterSet

from slotmesh.conformance.adapter import AdapterProcess
from slotmesh.conformance.case import Case
from slotmesh.conformance.player import play
from slotmesh.conformance.report import PlayedCase, Verdict

SLOW: Final = ("basic/router_vanishes", "basic/slow_router", "resumable/silence")
"""Cases in which seconds have to pass."""


def as_parameters(cases: Iterable[Case]) -> list[ParameterSet]:
    """The cases, as parameters of a test."""
    return [pytest.param(it, id=it.name, marks=[pytest.mark.slow] if it.name in SLOW else []) for it in cases]


async def require_kept(case: Case, adapter: AdapterProcess) -> None:
    """Fails the test, with what people see of it, unless the client keeps the case."""
    problem = await play(case, adapter)
    if problem is not None:
        pytest.fail("\n".join(PlayedCase(case, Verdict.FAILED, problem=problem).details()), pytrace=False)
