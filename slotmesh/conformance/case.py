"""A case: what is done to a client, and what it must do, as data.

Purpose: reads and checks the YAML files below `cases/`. The folder of a file is its level.
Invariant: a case that was read has only steps that the player knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

LEVELS: Final = ("basic", "windowed", "resumable")
"""Each one includes those before it."""

STEPS: Final = frozenset(
    {
        *("absent", "accept", "acked", "calls", "cancelled", "chunked", "client", "closed", "echo", "end"),
        *("half_close", "heartbeats", "kill", "open", "openings", "refuse", "report", "roster_acked", "send"),
        *("silence", "start", "taken", "unclosed", "untaken", "untried", "unreported", "vanish"),
    }
)

SESSIONS: Final = "sessions"
"""The capability of each client of the level `resumable`: its streams have a session."""

CAPABILITIES: Final = frozenset({"no_reply", "streaming", "chunks", "ordering_keys", "stop", "tenants"})
"""Those that an adapter may name."""

_FIELDS: Final = frozenset({"about", "rules", "needs", "unless", "routers", "steps"})
_FOLDER: Final = Path(__file__).parent / "cases"


class BadCase(ValueError):
    """The file is not a case."""


@dataclass(frozen=True, slots=True)
class Case:
    """One behaviour."""

    name: str
    """`level/behaviour`."""
    level: str
    about: str
    """The behaviour, for a person."""
    rules: tuple[str, ...]
    """Ids of the rules in docs/protocol.md that it checks; rules that hold in each case are not among them."""
    needs: frozenset[str]
    """Capabilities of a client without which the case does not apply to it."""
    unless: frozenset[str]
    """Capabilities of a client with which it does not."""
    routers: tuple[str, ...]
    steps: tuple[tuple[str, Any], ...]
    """Kind and argument."""

    def mismatch(self, level: str, capabilities: Collection[str]) -> str:
        """Why the case does not apply to clients of this level with these capabilities; empty if it does."""
        if LEVELS.index(self.level) > LEVELS.index(level):
            return f"needs level {self.level}"
        if missing := sorted(self.needs.difference(capabilities)):
            return f"needs {', '.join(missing)}"
        excess = sorted(self.unless.intersection(capabilities))
        return f"not with {', '.join(excess)}" if excess else ""


@cache
def load_cases() -> tuple[Case, ...]:
    """All cases, by level and name."""
    return tuple(load_case(path) for level in LEVELS for path in sorted((_FOLDER / level).glob("*.yaml")))


def cases_of(level: str, *capabilities: str) -> list[Case]:
    """The cases that apply to clients of this level with these capabilities."""
    return [case for case in load_cases() if not case.mismatch(level, capabilities)]


def load_case(path: Path) -> Case:
    """Reads one file.

    Raises:
        BadCase: it is not a case; the message states where and why.
    """
    name = f"{path.parent.name}/{path.stem}"
    document = yaml.safe_load(path.read_text("utf-8"))
    if not isinstance(document, Mapping) or not isinstance(document.get("about"), str):
        raise BadCase(f"{name}: a case is a map with `about`, `rules` and `steps`")
    if unknown := document.keys() - _FIELDS:
        raise BadCase(f"{name}: unknown fields {sorted(unknown)}")
    return Case(
        name=name,
        level=path.parent.name,
        about=document["about"].strip(),
        rules=tuple(document.get("rules", ())),
        needs=frozenset(document.get("needs", ())),
        unless=frozenset(document.get("unless", ())),
        routers=tuple(document.get("routers", ("A",))),
        steps=tuple(_step(name, number, step) for number, step in enumerate(document["steps"], 1)),
    )


def _step(name: str, number: int, step: object) -> tuple[str, Any]:
    if isinstance(step, str):
        step = {step: {}}
    if not isinstance(step, Mapping) or len(step) != 1:
        raise BadCase(f"{name}, step {number}: a step has one kind, got {step!r}")
    ((kind, argument),) = step.items()
    if kind not in STEPS:
        raise BadCase(f"{name}, step {number}: unknown kind {kind!r}; there are {', '.join(sorted(STEPS))}")
    return kind, argument
