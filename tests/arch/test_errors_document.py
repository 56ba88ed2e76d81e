"""The table of docs/errors.md is true: each reason is in it, with its status and all that is said of execution."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from slotmesh.errors import Executed, Reason
from slotmesh.status import STATUS_OF
from tests.arch.sources import ROOT, shipped_modules

AS_KNOWN = frozenset({"no", "unknown", "yes"})
AMONG_PROCESSES = {("DRAINING", "unknown")}
"""What no caller hears; the document says what becomes of it."""


def documented() -> Iterator[tuple[str, frozenset[str], frozenset[str]]]:
    """Each reason of the table, once a row: its statuses, and what it may say of execution."""
    for line in (ROOT / "docs/errors.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"[A-Z_, ]+", cells[2]):
            executed = AS_KNOWN if cells[3] == "as known" else AS_KNOWN & set(re.findall(r"\w+", cells[3]))
            for reason in cells[2].split(", "):
                yield reason, frozenset(re.findall(r"[A-Z_]+", cells[1])), executed


def said(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """What each failure that is made here says, where code says it outright: line, reason, executed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Failure":
            fields = {keyword.arg: keyword.value for keyword in node.keywords}
            reason = fields.get("reason")
            if isinstance(reason, ast.Attribute) and reason.attr in Reason.__members__:
                executed = fields.get("executed", ast.parse("Executed.NO", mode="eval").body)
                for each in ast.walk(executed):
                    if isinstance(each, ast.Attribute) and each.attr in Executed.__members__:
                        yield node.lineno, reason.attr, each.attr.lower()


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value)
def test_each_reason_is_in_the_table_with_its_status(reason: Reason) -> None:
    rows = [statuses for name, statuses, _ in documented() if name == reason.value]
    assert rows, f"docs/errors.md has no row of {reason.value}"
    assert all(STATUS_OF[reason].name in statuses for statuses in rows)


def test_what_failures_say_of_execution_is_what_the_table_says() -> None:
    allowed: dict[str, frozenset[str]] = {}
    for reason, _, executed in documented():
        allowed[reason] = allowed.get(reason, frozenset()) | executed
    found = [
        f"{path}:{line}: {reason} says executed={executed}"
        for path, tree in shipped_modules()
        for line, reason, executed in said(tree)
        if executed not in allowed.get(reason, frozenset()) and (reason, executed) not in AMONG_PROCESSES
    ]
    assert not found, "docs/errors.md says otherwise"
