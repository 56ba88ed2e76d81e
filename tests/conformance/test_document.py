"""docs/protocol.md: its frames are frames, its rules name their cases, and the cases name their rules."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf import json_format

from slotmesh import conformance
from slotmesh.conformance.case import load_cases
from slotmesh.v1 import router_service_pb2

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
_TEXT: Final = _PAGE.read_text("utf-8")
_BLOCKS = re.findall(r"```json\n\s*(.*?)```", _TEXT, re.DOTALL)
_FROM_CLIENT = {"open", "calls", "cancel", "ack", "chunk", "take"}
_IN_EACH_CASE: Final = "all"


@pytest.mark.parametrize("block", _BLOCKS, ids=lambda block: block[2:].partition('"')[0])
def test_a_frame_of_the_page_is_proto_json(block: str) -> None:
    frame: dict[str, Any] = json.loads(block.replace('"…"', '"WzFd"'))
    message: Any = router_service_pb2.StreamCallsResponse()
    if _FROM_CLIENT & frame.keys():
        message = router_service_pb2.StreamCallsRequest()
    json_format.ParseDict(frame, message)
    assert message.WhichOneof("frame") is not None


def rules_of_the_page() -> dict[str, set[str]]:
    """The cases of each rule; `all` for those that hold in each case."""
    rows = re.findall(r'^\| <a id="(\w+)"></a>(\w+) \| .* \| ([^|]*) \|$', _TEXT, re.MULTILINE)
    assert [anchor.upper() for anchor, _, _ in rows] == [rule for _, rule, _ in rows]
    assert len({rule for _, rule, _ in rows}) == len(rows) > 50
    return {rule: set(re.findall(r"\w+", cases)) for _, rule, cases in rows}


def test_each_rule_has_a_case_and_each_case_its_rules() -> None:
    named: defaultdict[str, set[str]] = defaultdict(set)
    for case in load_cases():
        assert case.rules, f"{case.name} names no rule"
        for rule in case.rules:
            named[rule].add(case.name.partition("/")[2])
    page = rules_of_the_page()
    assert [rule for rule, cases in page.items() if not cases] == []
    assert {rule: cases - {_IN_EACH_CASE} for rule, cases in page.items() if cases != {_IN_EACH_CASE}} == named


def test_rules_that_hold_in_each_case_are_those_that_the_suite_watches() -> None:
    folder = Path(conformance.__file__).parent
    watched = {
        node.value
        for name in ("rules.py", "rosters.py")
        for node in ast.walk(ast.parse((folder / name).read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[A-Z]\d+", node.value)
    }
    assert watched == {rule for rule, cases in rules_of_the_page().items() if _IN_EACH_CASE in cases}


def test_names_of_cases_are_unique_without_their_level() -> None:
    names = [case.name.partition("/")[2] for case in load_cases()]
    assert len(names) == len(set(names))
