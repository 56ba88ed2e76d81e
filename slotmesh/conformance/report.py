"""What came of each case: for people, as JSON, and as JUnit's XML.

Owner: the program that plays cases.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as Xml

from slotmesh.conformance.adapter import ClientUnderTest
from slotmesh.conformance.case import Case
from slotmesh.conformance.record import Breach
from slotmesh.version import VERSION

_FOLDER: Final = Path(__file__).parent
PAGE: Final = next(
    path for path in (_FOLDER / "protocol.md", _FOLDER.parents[1] / "docs" / "protocol.md") if path.is_file()
)
"""docs/protocol.md: the copy in the package, or in the repository."""

SHOWN_FRAMES: Final = 12
"""Newest frames that people see; the machine-readable report has all that were kept."""


class Verdict(StrEnum):
    """Of a case."""

    KEPT = "kept"
    FAILED = "failed"
    SKIPPED = "skipped"


@cache
def rules_of_page() -> dict[str, tuple[int, str]]:
    """Line and text of each rule."""
    rows = (re.match(r"\| <a id=.*</a>(\w+) \| (.*) \| .* \|$", line) for line in PAGE.read_text("utf-8").splitlines())
    return {row[1]: (number, row[2]) for number, row in enumerate(rows, 1) if row}


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
    skipped: str = ""
    """Why it was skipped; else empty."""

    @property
    def broken_rules(self) -> tuple[str, ...]:
        """Ids of the rules that were not kept, or of those that the case is about."""
        breaches = self.problem.breaches if self.problem else ()
        return tuple(dict.fromkeys(each.rule for each in breaches)) or self.case.rules

    def line(self) -> str:
        """For people."""
        return f"  {self.verdict:<8}{self.case.name:<40}  {self.seconds:5.2f} s"

    def details(self) -> Iterator[str]:
        """Why it failed, for people."""
        if (problem := self.problem) is None:
            return
        yield f"{self.case.name}: {self.case.about}"
        for rule in self.broken_rules:
            line, text = rules_of_page()[rule]
            yield f"      rule {rule}: {text}"
            yield f"      {'':<{len(rule)}}       {PAGE}:{line}"
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
        if self.skipped:
            document["skipped"] = self.skipped
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

    def summary(self) -> Iterator[str]:
        """After all cases, for people: what was skipped, why cases failed, and last how many did."""
        skipped = Counter(played.skipped for played in self.cases if played.skipped)
        if skipped:
            yield f"  skipped {', '.join(f'{count} ({why})' for why, count in sorted(skipped.items()))}"
        for played in self.cases:
            if played.problem is not None:
                yield ""
                yield from played.details()
        tally = (f"{count} {verdict}" for verdict, count in sorted(self.tally.items()))
        yield ", ".join(tally) or "no case has that name"

    def save(self, path: Path) -> None:
        """Writes JUnit's XML to a path that ends in `.xml`, else JSON."""
        path.write_text(self._junit() if path.suffix == ".xml" else self._json(), "utf-8")

    def _json(self) -> str:
        document = {
            "suite": f"slotmesh {VERSION}",
            "client": self.client.name,
            "level": self.level,
            "capabilities": sorted(self.client.capabilities),
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
            if played.skipped:
                Xml.SubElement(element, "skipped", message=played.skipped)
            if played.problem is not None:
                failure = Xml.SubElement(element, "failure", message=f"not kept: {', '.join(played.broken_rules)}")
                failure.text = _printable("\n".join(played.details()))
        return Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """XML has no control characters; payloads that are not text could have some."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def list_lines(cases: Sequence[Case]) -> Iterator[str]:
    """The cases themselves."""
    for case in cases:
        needs = f"  (needs {', '.join(sorted(case.needs))})" if case.needs else ""
        yield f"{case.name:<40}{' '.join(case.rules):<12}{case.about}{needs}"
