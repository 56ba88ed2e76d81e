"""What is wrong with the ingresses that were named. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slotmesh.cli.checking.finding import MeshFinding, Section, Severity, ok
from slotmesh.cli.checking.seen import IngressFacts, SeenMesh, ServerAnswer
from slotmesh.units import is_loopback, parse_host_port


def ingresses(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Whether they take requests, and know the newest routes."""
    known = [(each, each.ingress) for each in seen.answers if each.ingress is not None]
    well = 0
    for each, facts in known:
        finding = _of_ingress(each, facts)
        if finding is None:
            well += 1
        else:
            yield finding
    if well:
        yield ok(Section.HTTP, f"{well} of {len(known)} ingresses are ready")
    if silent := sum(not facts.tells_routes for _, facts in known):
        text = f"{silent} tell neither version nor routes without the token of somebody who may call (SLOTMESH_TOKEN)"
        yield ok(Section.HTTP, text)


def plain_http(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Requests that others can read."""
    for each in seen.answers:
        if each.ingress is None or each.ingress.by_tls or is_loopback(parse_host_port(each.announced.address)[0]):
            continue
        yield MeshFinding(
            Section.SECURITY,
            Severity.WARNING,
            each.announced.subject,
            f"HTTP in plain text, bearer tokens included: {each.announced.address}",
            "start it with --https-cert and --https-key in place of --insecure, or behind a proxy that has them",
        )


def _of_ingress(answer: ServerAnswer, facts: IngressFacts) -> MeshFinding | None:
    subject, address = answer.announced.subject, answer.announced.address
    if facts.not_ready:
        text = f"ingress {address} is not ready: {facts.not_ready}"
        fix = "it has to reach a controller (--controller) for its routes, and routers (--routers) for calls"
        return MeshFinding(Section.HTTP, Severity.ERROR, subject, text, fix)
    if facts.routes_held:
        text = f"ingress {address} keeps its routes: the state file of the controller that it follows is an older copy"
        fix = "put the newest --state file back, or adopt what members know: `slotmesh state adopt --from-members`"
        return MeshFinding(Section.HTTP, Severity.WARNING, subject, text, fix)
    if facts.follows_controller is False:
        text = f"ingress {address} does not hear a controller that leads: its routes may be old"
        fix = "see its log, and whether its --controller names all controllers"
        return MeshFinding(Section.HTTP, Severity.WARNING, subject, text, fix)
    return None
