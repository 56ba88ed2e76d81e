"""Outside its core the router's state is not written: events go in by the dispatcher, all else is asked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.sources import ROOT

DISPATCHER = "router_service/shell/dispatcher.py"
ASKED = frozenset({"counters", "next_deadline", "scan_calls", "table", "tenants", "topology"})
"""What the scheduler tells anybody."""
ACCOUNTING = frozenset({"admit", "joined", "left", "released"})
"""What a caller has under way: it is counted at once, and no command follows from it."""
OF_THE_DISPATCHER = ASKED | ACCOUNTING | {"cut_frame", "cut_ops", "follow", "step"}
SCHEDULERS = frozenset({"scheduler", "_scheduler"})
CALLERS = frozenset({"caller", "_caller"})
REPLICAS = frozenset({"replica", "_replica"})
OF_CALLERS = frozenset({"admit", "count", "leave", "released", "runs", "stop", "stops", "stream", "streams"})
"""What of a caller only the core changes."""
WITHIN = frozenset({"inflight", "ops", "outbox", "ready", "runs", "stops"})
"""What of a caller and of a replica only the core looks into: what others need they are told by a method."""


def edge_files() -> Iterator[Path]:
    for path in sorted((ROOT / "router_service").rglob("*.py")):
        if "core" not in path.relative_to(ROOT / "router_service").parts:
            yield path


def side_doors(path: str, source: str) -> Iterator[str]:
    """Yields what is done to the scheduler, or to a caller, that is not an event and more than a question."""
    asked = OF_THE_DISPATCHER if path == DISPATCHER else ASKED | ACCOUNTING
    for node in ast.walk(ast.parse(source, path)):
        match node:
            case ast.Attribute(value=owner, attr=name) if _name(owner) in SCHEDULERS and name not in asked:
                yield f"{path}:{node.lineno}: scheduler.{name}"
            case ast.Attribute(value=owner, attr=name) if name in WITHIN and _name(owner) in CALLERS | REPLICAS:
                yield f"{path}:{node.lineno}: {_name(owner)}.{name}"
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in OF_CALLERS and _name(owner) in CALLERS:
                yield f"{path}:{node.lineno}: caller.{name}()"
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                yield from (f"{path}:{node.lineno}: {ast.unparse(each)}" for each in targets if _is_state(each))
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                if _is_state(target):
                    yield f"{path}:{node.lineno}: {ast.unparse(target)}"
            case _:
                pass


def _is_state(target: ast.expr) -> bool:
    """Whether what is written is in something that is the core's, and not in a message."""
    inside = _names(target)[1:]
    return inside[-1:] != ["wire"] and not {*SCHEDULERS, *REPLICAS, *OF_CALLERS}.isdisjoint(inside)


def _name(node: ast.expr) -> str:
    """The last name: of `self._dispatcher.scheduler` it is `scheduler`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names(target: ast.expr) -> list[str]:
    """What is written, and then what it is written into, from right to left."""
    names: list[str] = []
    node = target
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(node, ast.Subscript):
            names.append("[]")
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            names.append(node.attr)
            node = node.value
    if isinstance(node, ast.Name):
        names.append(node.id)
    return names


def test_the_edge_has_no_side_doors() -> None:
    found = [each for path in edge_files() for each in side_doors(path.relative_to(ROOT).as_posix(), path.read_text())]
    assert not found, "make it an event (CONTRIBUTING.md says how), or something that the scheduler is asked"


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("self._dispatcher.post(TimePassed())", False),
        ("table = self._dispatcher.scheduler.table", False),
        ("name = dispatcher.scheduler.topology.backends[0].name", False),
        ("self._replica = replica", False),
        ("dispatcher.scheduler.step(TimePassed(), 0.0)", True),
        ("dispatcher.scheduler._parts.uploads.left(caller)", True),
        ("dispatcher.scheduler.counters.calls['e',] += 1", True),
        ("dispatcher.scheduler.topology.table = table", True),
        ("self._replica.draining = True", True),
        ("replica.times['m'] = 3", True),
        ("self._caller.stop('key', 1, 2)", True),
        ("self._caller.released(1, 2)", True),
        ("self._dispatcher.scheduler.released(self._caller, 1, 2)", False),
        ("self.caller.runs[run] = None", True),
        ("del caller.streams[3]", True),
        ("is_idle = not self._replica.outbox", True),
        ("is_idle = not self._replica.has_unsent_runs", False),
        ("last = list(caller.runs)", True),
    ],
)
def test_side_doors_are_found(line: str, is_one: bool) -> None:
    assert bool(list(side_doors("router_service/shell/x.py", line))) is is_one
