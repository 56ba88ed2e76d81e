"""All findings of a check, in order. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from slotmesh.cli.checking import ingresses, revocations, servers, work
from slotmesh.cli.checking.finding import MeshFinding, Section, Severity
from slotmesh.cli.checking.seen import SeenMesh

_ASKS_CONTROLLER: Final = re.compile(
    r"`(slotmesh (?:apply|calls|delete|drain|events|history|logs|rollback|rollout|scale|status|traffic)[^`]*)`"
)
_JUDGES: Final[tuple[Callable[[SeenMesh], Iterator[MeshFinding]], ...]] = (
    servers.controllers,
    servers.reachability,
    ingresses.ingresses,
    servers.certificates,
    servers.identities,
    revocations.revocations,
    servers.security,
    ingresses.plain_http,
    servers.versions,
    servers.clocks,
    servers.descriptors,
    work.routers,
    work.lost_members,
    work.backends,
    work.endpoints,
)


def findings_of(seen: SeenMesh, flags: str = "") -> list[MeshFinding]:
    """What is wrong, and what is well, by section. `flags`: what commands need to find this mesh."""
    findings = (finding for judge in _JUDGES for finding in judge(seen))
    return [replace(finding, fix=runnable(finding.fix, flags)) if finding.fix else finding for finding in findings]


def runnable(fix: str, flags: str) -> str:
    """The same advice, whose commands that ask a controller find this one."""
    return _ASKS_CONTROLLER.sub(lambda found: f"`{found[1]} {flags}`", fix) if flags else fix


def not_answering(problem: str) -> list[MeshFinding]:
    """What is found where no controller can be asked."""
    line, _, way_out = problem.partition("; ")
    return [MeshFinding(Section.CONTROLLER, Severity.ERROR, "", line, way_out)]


def is_well(findings: Iterable[MeshFinding]) -> bool:
    return all(finding.severity is not Severity.ERROR for finding in findings)


def document_of(findings: Iterable[MeshFinding]) -> dict[str, Any]:
    """As values of JSON."""
    findings = [*findings]
    count = {severity: sum(it.severity is severity for it in findings) for severity in Severity}
    return {
        "well": is_well(findings),
        "errors": count[Severity.ERROR],
        "warnings": count[Severity.WARNING],
        "findings": [
            {
                "section": it.section.value,
                "severity": it.severity.value,
                "subject": it.subject or None,
                "text": it.text,
                "fix": it.fix or None,
            }
            for it in findings
        ],
    }
