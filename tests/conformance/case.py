"""A case: what is done to a client, and what it must do, as data.

Purpose: reads and checks the YAML files below `cases/`. The folder of a file is its level.
Invariant: a case that is read has only steps that the player knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

LEVELS: Final = ("basic", "windowed", "resumable")
"""Each one includes those before it."""

STEPS: Final = frozenset(
    {
        "absent",
        "accept",
        "acked",
        "calls",
        "chunked",
        "cancelled",
        "client",
        "closed",
        "end",
        "half_close",
        "heartbeats",
        "kill",
        "open",
        "report",
        "roster_acked",
        "send",
        "silence",
        "start",
        "taken",
        "untaken",
        "unreported",
    }
)

_FIELDS: Final = frozenset({"about", "needs", "without", "routers", "steps"})
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
    """The rule, for a person."""
    needs: frozenset[str]
    """Features without which the case says nothing about a client."""
    without: frozenset[str]
    """Features with which it says nothing: a client that resumes does not lose what this case takes away."""
    routers: tuple[str, ...]
    steps: tuple[tuple[str, Any], ...]
    """Kind and argument."""

    def fits(self, level: str, features: Collection[str]) -> bool:
        """Whether the case speaks of clients of this level with these features."""
        low_enough = LEVELS.index(self.level) <= LEVELS.index(level)
        return low_enough and self.needs <= set(features) and not self.without & set(features)


def load_cases() -> list[Case]:
    """All cases, by level and name."""
    return [load_case(path) for level in LEVELS for path in sorted((_FOLDER / level).glob("*.yaml"))]


def cases_of(level: str, *features: str) -> list[Case]:
    """The cases that speak of clients of this level with these features."""
    return [case for case in load_cases() if case.fits(level, features)]


def load_case(path: Path) -> Case:
    """Reads one file.

    Raises:
        BadCase: it is not a case; says where and why.
    """
    name = f"{path.parent.name}/{path.stem}"
    document = yaml.safe_load(path.read_text("utf-8"))
    if not isinstance(document, Mapping) or not isinstance(document.get("about"), str):
        raise BadCase(f"{name}: a case is a map with `about` and `steps`")
    if unknown := document.keys() - _FIELDS:
        raise BadCase(f"{name}: unknown fields {sorted(unknown)}")
    return Case(
        name=name,
        level=path.parent.name,
        about=document["about"].strip(),
        needs=frozenset(document.get("needs", ())),
        without=frozenset(document.get("without", ())),
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
