"""What came of each case: for people, as JSON, and as JUnit's XML.

Owner: the program that plays cases.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as Xml

from slotmesh.conformance.adapter import ClientUnderTest
from slotmesh.conformance.case import Case
from slotmesh.conformance.record import Breach
from slotmesh.version import VERSION

SECTION: Final = "docs/protocol.md#{}"
"""Where a rule stands, by its id in lower case."""

SHOWN_FRAMES: Final = 12
"""Newest frames that people see; the machine-readable report has all that were kept."""


class Verdict(StrEnum):
    """Of a case."""

    KEPT = "kept"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CaseProblem:
    """Why a case failed."""

    step: str
    """Number, kind and argument of the step."""
    expected: str
    """Empty if the step itself was kept."""
    got: str
    breaches: tuple[Breach, ...]
    """Rules that hold in each case."""
    adapter_errors: tuple[str, ...]
    frames: tuple[str, ...]
    """What was sent and received, a line each."""


@dataclass(frozen=True, slots=True)
class PlayedCase:
    """The outcome of one case."""

    case: Case
    verdict: Verdict
    seconds: float = 0.0
    problem: CaseProblem | None = None
    missing: str = ""
    """What the client lacks for the case, if it was skipped."""

    @property
    def broken_rules(self) -> tuple[str, ...]:
        """Ids of the rules that were not kept, or of those that the case is about."""
        breaches = self.problem.breaches if self.problem else ()
        return tuple(dict.fromkeys(each.rule for each in breaches)) or self.case.rules

    def lines(self) -> Iterator[str]:
        """For people."""
        note = f"  needs {self.missing}" if self.missing else f"  {self.seconds:5.2f} s"
        yield f"  {self.verdict:<8}{self.case.name:<40}{note}"
        if (problem := self.problem) is None:
            return
        yield f"      {self.case.about}"
        yield from (f"      rule {rule}: {SECTION.format(rule.lower())}" for rule in self.broken_rules)
        yield f"      step {problem.step}"
        if problem.expected:
            yield f"      expected: {problem.expected}"
            yield f"      got:      {problem.got}"
        yield from (f"      not kept: {each}" for each in problem.breaches)
        yield from (f"      adapter:  {each}" for each in problem.adapter_errors)
        yield from (f"        {each}" for each in problem.frames[-SHOWN_FRAMES:])

    def document(self) -> dict[str, Any]:
        """For programs."""
        document: dict[str, Any] = {
            "name": self.case.name,
            "about": self.case.about,
            "verdict": self.verdict.value,
            "rules": list(self.broken_rules if self.problem else self.case.rules),
            "seconds": round(self.seconds, 3),
        }
        if self.missing:
            document["needs"] = self.missing
        if self.problem is not None:
            document["problem"] = asdict(self.problem) | {
                "breaches": [each._asdict() for each in self.problem.breaches]
            }
        return document


@dataclass(slots=True)
class ConformanceReport:
    """The outcomes of all cases, for one client."""

    client: ClientUnderTest
    level: str
    cases: list[PlayedCase] = field(default_factory=list)

    @property
    def is_kept(self) -> bool:
        """Whether cases were played, and all of them were kept."""
        tally = self.tally
        return not tally[Verdict.FAILED] and bool(tally[Verdict.KEPT])

    @property
    def tally(self) -> Counter[Verdict]:
        """Cases by verdict."""
        return Counter(played.verdict for played in self.cases)

    def save(self, path: Path) -> None:
        """Writes JUnit's XML to a path that ends in `.xml`, else JSON."""
        path.write_text(self._junit() if path.suffix == ".xml" else self._json(), "utf-8")

    def _json(self) -> str:
        document = {
            "suite": f"slotmesh {VERSION}",
            "client": self.client.name,
            "level": self.level,
            "features": sorted(self.client.features),
            "tally": {verdict.value: self.tally[verdict] for verdict in Verdict},
            "cases": [played.document() for played in self.cases],
        }
        return json.dumps(document, indent=2) + "\n"

    def _junit(self) -> str:
        tally = self.tally
        suite = Xml.Element(
            "testsuite",
            name=f"slotmesh conformance: {self.client.name}, {self.level}",
            tests=str(len(self.cases)),
            failures=str(tally[Verdict.FAILED]),
            skipped=str(tally[Verdict.SKIPPED]),
        )
        for played in self.cases:
            level, _, name = played.case.name.partition("/")
            element = Xml.SubElement(suite, "testcase", classname=level, name=name, time=f"{played.seconds:.3f}")
            if played.missing:
                Xml.SubElement(element, "skipped", message=f"needs {played.missing}")
            if played.problem is not None:
                failure = Xml.SubElement(element, "failure", message=f"not kept: {', '.join(played.broken_rules)}")
                failure.text = _printable("\n".join(played.lines()))
        return Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """XML has no control characters; payloads that are not text could have some."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def list_lines(cases: Sequence[Case]) -> Iterator[str]:
    """The cases themselves."""
    for case in cases:
        needs = f"  (needs {', '.join(sorted(case.needs))})" if case.needs else ""
        yield f"{case.name:<40}{' '.join(case.rules):<12}{case.about}{needs}"
