"""The suite finds each defect of a client, and names the rule."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slotmesh.conformance.adapter import adapter_process
from slotmesh.conformance.case import load_cases
from slotmesh.conformance.player import play
from slotmesh.conformance.report import PlayedCase, Verdict

pytestmark = pytest.mark.asyncio
CLIENT = Path(__file__).with_name("broken_client.py")


@pytest.mark.parametrize(
    ("defect", "name", "rule"),
    [
        ("ignores_alternates", "resumable/resume_at_alternate", "B21"),
        ("tries_the_lost_router_first", "resumable/resume_other_router_first", "B27"),
        pytest.param("makes_short_pauses", "basic/pauses", "B27", marks=pytest.mark.slow),
        ("reports_closed_early", "basic/close", "B16"),
        ("merges_methods", "basic/methods", "B6"),
        ("knows_no_window", "basic/many_calls", "W1"),
        ("names_no_features", "windowed/chunks_of_results", "C4"),
        ("takes_calls_while_it_closes", "basic/call_after_close", "B16"),
    ],
)
async def test_a_client_with_this_defect_fails_the_case(defect: str, name: str, rule: str) -> None:
    case = next(each for each in load_cases() if each.name == name)
    async with adapter_process([sys.executable, str(CLIENT), defect]) as adapter:
        problem = await play(case, adapter)
    assert problem is not None
    assert rule in PlayedCase(case, Verdict.FAILED, problem=problem).broken_rules
