"""`slotmesh check`: finds the problems of a running mesh, and prints them by section, each with its fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Annotated, Any, Final, TextIO

import typer
from rich.text import Text

from slotmesh.cli.checking import member_findings, servers
from slotmesh.cli.checking.findings import IngressUrl, MeshFinding, Section, SeenMesh, Severity
from slotmesh.cli.checking.gathering import look_at
from slotmesh.cli.checking.hosts import without_host as losses_without
from slotmesh.cli.console import UNWELL, WRONG_INPUT, CommandFailed, Output, OutputForm, Printable, console_of, looks
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, duration, read_address
from slotmesh.errors import SlotmeshError

_ASKS_CONTROLLER: Final = re.compile(
    r"`(slotmesh (?:apply|calls|delete|drain|events|forget|history|logs|rollback|rollout|scale|status|traffic)[^`]*)`"
)
_JUDGES: Final[tuple[Callable[[SeenMesh], Iterator[MeshFinding]], ...]] = (
    servers.controllers,
    servers.reachability,
    servers.ingresses,
    servers.certificates,
    servers.identities,
    servers.revocations,
    servers.security,
    servers.plain_http,
    servers.versions,
    servers.clocks,
    servers.descriptors,
    servers.exports,
    member_findings.routers,
    member_findings.lost_members,
    member_findings.backends,
    member_findings.rollouts,
    member_findings.endpoints,
)
_OF_CONFIGURATION: Final = frozenset({member_findings.backends, member_findings.rollouts, member_findings.endpoints})
"""They compare what runs with the configuration, which is not in force while the controller is on hold."""


def findings_of(seen: SeenMesh, flags: str = "", *, host: str = "") -> list[MeshFinding]:
    """What is wrong, and what is well, by section. `flags`: what commands need to find this mesh.

    `host`: also what would stop without it; empty: of no host.
    """
    judges = [judge for judge in _JUDGES if not (seen.snapshot.is_on_hold and judge in _OF_CONFIGURATION)]
    findings = [finding for judge in judges for finding in judge(seen)]
    if host:
        findings += losses_without(seen, host)
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


_MARKS: Final = {Severity.OK: ("√", "green"), Severity.WARNING: ("‼", "yellow"), Severity.ERROR: ("×", "red")}


def print_findings(findings: Sequence[MeshFinding], out: TextIO) -> None:
    """Colours only where `out` is a terminal."""
    console = console_of(out)
    for section, group in groupby(findings, key=lambda it: it.section):
        console.print(Text(section.value, style="bold"))
        for finding in group:
            mark, style = _MARKS[finding.severity]
            console.print(Text(f"{mark} {finding.text}", style=style), soft_wrap=True)
            if finding.fix:
                console.print(Text(f"    {finding.fix}"), soft_wrap=True)
    errors, warnings = (sum(it.severity is one for it in findings) for one in (Severity.ERROR, Severity.WARNING))
    verdict = "all is well" if not errors + warnings else f"{_count(errors, 'error')}, {_count(warnings, 'warning')}"
    console.print(Text(f"\n{verdict}", style="red" if errors else "yellow" if warnings else "green"))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


_AGAIN_AFTER_S = 1.0


def _ingress(text: str) -> IngressUrl:
    """A URL as typed, or HOST:PORT."""
    scheme, separator, rest = text.rpartition("://")
    address, _, path = rest.partition("/")
    if scheme not in ("http", "https", "") or (separator and not scheme) or path:
        raise typer.BadParameter(f"expected http://HOST:PORT or https://HOST:PORT, got {text!r}")
    by_tls = {"http": False, "https": True}.get(scheme)
    if scheme and ":" not in address.rpartition("]")[2]:
        address = f"{address}:{443 if by_tls else 80}"
    return IngressUrl(read_address(address), by_tls)


Patience = Annotated[
    timedelta | None, duration("Repeat the check until nothing is wrong, at most this long, as 1m after an upgrade.")
]
Ingresses = Annotated[
    list[IngressUrl] | None,
    typer.Option(
        "--http",
        parser=_ingress,
        metavar="URL",
        help="An ingress, of which no controller knows, as https://api.example.com or http://127.0.0.1:8080; may be "
        "given several times.",
    ),
]
WithoutHost = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        help="Also say what would stop if all processes on this host ended; the host as in announced addresses.",
    ),
]


async def check(
    *,
    wait: Patience = None,
    http: Ingresses = None,
    without_host: WithoutHost = "",
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Look at a running mesh, and say what is wrong with it and what to do.

    Who leads; whether each address that is announced to others answers, is who it should be, and when its certificate
    ends; versions, clocks, open descriptors, exports of traces and metrics; whether routers have the newest routing
    table and links to all replicas, backends their replicas, endpoints somewhere to lead; of ingresses that are named
    with --http the same, and whether they are ready and know the newest routes. Addresses are tried from this machine:
    from another network some may not be reached that others reach.

    √ is well, ‼ a warning, × wrong. Exit status 0: nothing is wrong, though there may be warnings; 4: something is.

    Like this:

        slotmesh check --address 127.0.0.1:7070
        slotmesh check --http https://api.example.com
        slotmesh check --without-host 10.0.0.7
        slotmesh check --wait 1m --output json | jq '.findings[] | select(.severity != "ok")'
    """
    if output is OutputForm.NAME:
        raise typer.BadParameter("takes table, json or yaml", param_hint="--output")
    findings: list[MeshFinding] = []
    async for is_last in looks(_AGAIN_AFTER_S, 0.0 if wait is None else wait.total_seconds()):
        findings = await _findings(address, http or [], without_host)
        if is_well(findings) or is_last:
            break
    Printable(table=partial(print_findings, findings), document=partial(document_of, findings), names=tuple).write(
        output
    )
    if not is_well(findings):
        raise typer.Exit(UNWELL)


async def _findings(address: str, ingresses: Sequence[IngressUrl], host: str) -> list[MeshFinding]:
    flags = "" if address == CONTROLLER else f"--address {address}"
    try:
        return findings_of(await look_at(address, ingresses), flags, host=host)
    except (CommandFailed, SlotmeshError) as failure:
        if isinstance(failure, CommandFailed) and failure.exit_code == WRONG_INPUT:
            raise
        return not_answering(str(failure))
