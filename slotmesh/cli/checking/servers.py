"""Findings about the servers of a mesh. Pure.

Addresses, identities, certificates, versions, clocks, the named ingresses; and whether all servers use the newest list
of revoked certificates and the newest certificate files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from slotmesh.cli.checking.findings import (
    IngressFacts,
    MeshFinding,
    Section,
    SeenMesh,
    ServerAnswer,
    Severity,
    credential_fix,
    ok,
)
from slotmesh.cli.documents import time_of
from slotmesh.cli.figures import unix_time
from slotmesh.security.identity import identity_of, trust_domain_of
from slotmesh.units import is_loopback, parse_host_port
from slotmesh.v1.info_service_pb2 import TlsStanding

ENDS_SOON: Final = 1 / 5
"""Of a certificate's lifetime, as `slotmesh certs show` has it: with less than this left, it is time for a new one."""
ENDS_NOW: Final = 1 / 20
"""Of its lifetime: with less than this left, and less than `ENDS_NOW_S`, a certificate is an error before it ends."""
ENDS_NOW_S: Final = 86_400.0
CLOCK_DIFFERS_S: Final = 1.0
CLOCK_WRONG_S: Final = 30.0
"""What is further off takes certificates and tokens for expired, or for not yet valid."""
MANY_DESCRIPTORS: Final = 0.8
FULL_DESCRIPTORS: Final = 0.95
INSIDE: Final = "check from inside that network, as in the container of the controller"
"""What helps if addresses are not reached because of where the command runs."""
_MOST_NAMED: Final = 5


def controllers(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Who leads, and who stands by."""
    section, standing = Section.CONTROLLER, seen.snapshot.controller
    controllers = [it for it in seen.answers if it.announced.kind in {"controller", "standby"}]
    statements = [(it.announced, it.info.controller) for it in controllers if it.info.HasField("controller")]
    # One controller may be reached at several addresses: it names its own.
    leaders = {role.leader_address or it.address: (it, role) for it, role in statements if role.leads}
    if len(leaders) > 1:
        named = ", ".join(sorted(leaders))
        fix = "end all but one, and start them with one --state file: only one can have its lock"
        yield MeshFinding(section, Severity.ERROR, "", f"several controllers lead: {named}", fix)
    elif standing is not None:
        began_at = time_of(standing.role, "leads_since_time")
        since = "" if began_at is None else f" since {_when(began_at.timestamp())}"
        yield ok(section, f"{standing.address} leads, term {standing.role.term}{since}")
    for address, (announced, role) in leaders.items():
        if role.store_problem:
            text = f"{address} cannot write its state, and refuses changes: {role.store_problem}"
            fix = "what is stored stays in force; make the file writable, and it goes on by itself"
            yield MeshFinding(section, Severity.ERROR, announced.subject, text, fix)
    if standing is not None and standing.role.newer_members:
        newer = "; ".join(standing.role.newer_members[:_MOST_NAMED])
        text = f"nothing is reconciled: {newer}; members go on as they were,"
        text += " so backends, rollouts and endpoints are not compared with the state file"
        fix = (
            "stop the controller and put the newest --state file back; or apply the newest mesh.yaml, then"
            " `slotmesh state adopt --from-members`; if this is the newest file,"
            " `slotmesh state adopt --discard-members`"
        )
        yield MeshFinding(section, Severity.ERROR, f"controller {standing.address}", text, fix)
    for announced, role in statements:
        if not role.leads and standing is not None and role.leader_address not in {standing.address, ""}:
            text = f"{announced.address} stands by for {role.leader_address}, which does not lead"
            fix = "start it with the --state file of the controller that leads"
            yield MeshFinding(section, Severity.WARNING, announced.subject, text, fix)
    if standbys := sum(not role.leads for _, role in statements):
        yield ok(section, f"{standbys} standing by")


def reachability(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Findings about announced addresses: each must respond, and be the announced server."""
    answered = 0
    for each in seen.answers:
        announced = each.announced
        if each.problem:
            yield _unreached(seen, each)
        elif announced.server_id and each.info.server_id and each.info.server_id != announced.server_id:
            yield MeshFinding(
                Section.REACHABILITY,
                Severity.ERROR,
                announced.subject,
                f"at {announced.address} another one answers: {each.info.server_id}",
                "two servers announce one address: give each its own with --advertise HOST:PORT, and a port of its own",
            )
        else:
            answered += 1
    if answered:
        yield ok(Section.REACHABILITY, f"{answered} of {len(seen.answers)} announced addresses answer from here")


def _unreached(seen: SeenMesh, answer: ServerAnswer) -> MeshFinding:
    announced = answer.announced
    severity, fix = Severity.ERROR, "see that it runs, and that --advertise is an address which others can reach"
    fix += f"; if this machine is not in the network of the mesh, {INSIDE}"
    if not announced.is_listed:
        severity = Severity.WARNING
        fix = "it neither leads nor stands by: start it again, or name it no more (--address, SLOTMESH_CONTROLLER)"
    elif announced.kind.startswith("metrics"):
        severity = Severity.WARNING
        fix = "it cannot be scraped from here: see --metrics-host and --metrics-port"
    elif announced.kind == "ingress":
        fix = "see that it runs; --http names it as its clients do, for whom its certificate has to be"
    elif announced.kind == "replica" and _is_linked(seen, announced.server_id):
        severity = Severity.WARNING
        fix = "routers have links to it; slots can be used straight at it only from where it is reached"
    text = f"{announced.kind} {announced.address} does not answer from here: {answer.problem}"
    fix = credential_fix(answer.problem) or fix
    return MeshFinding(Section.REACHABILITY, severity, announced.subject, text, fix)


def _is_linked(seen: SeenMesh, replica_id: str) -> bool:
    members = seen.snapshot.members
    return bool(members.routers) and not any(members.unlinked(it, frozenset({replica_id})) for it in members.routers)


def certificates(seen: SeenMesh) -> Iterator[MeshFinding]:
    """When they end: the command's own, that of its authority, and those of the servers."""
    section, own = Section.CERTIFICATES, seen.own_tls
    shown = [("own certificate" + (f" ({own.name})" if own.name else ""), "", own.certificate)]
    shown.append(("certificate of the authority", "", own.authority))
    shown += [(f"certificate of {it.announced.subject}", it.announced.subject, it.certificate) for it in seen.answers]
    known = [(what, subject, validity) for what, subject, validity in shown if validity is not None]
    for what, subject, validity in known:
        left_s = validity.ends_at - seen.now
        fix = "issue it again: `slotmesh certs rotate`; servers read the new files by themselves"
        if subject.startswith("ingress"):
            fix = "renew it where it is from; the ingress reads the new files of --https-cert by itself"
        if left_s <= 0:
            yield MeshFinding(section, Severity.ERROR, subject, f"{what} ended {_span(-left_s)} ago", fix)
            continue
        lifetime_s = validity.ends_at - validity.begins_at
        if left_s < ENDS_SOON * lifetime_s:
            severity = Severity.ERROR if left_s < min(ENDS_NOW * lifetime_s, ENDS_NOW_S) else Severity.WARNING
            yield MeshFinding(section, severity, subject, f"{what} ends in {_span(left_s)}", fix)
    if known and (soonest_s := min(validity.ends_at for _, _, validity in known) - seen.now) > 0:
        yield ok(section, f"{len(known)} certificates are valid, the first ends in {_span(soonest_s)}")


def identities(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Whether servers are who they should be: who connects goes by DNS names, which others may have got, too."""
    for each in seen.answers:
        if each.certificate is None or each.ingress is not None:
            continue
        announced, named = each.announced, ", ".join(each.certificate_uris) or "no identity"
        role, backend = announced.role, announced.backend
        who = identity_of(named, trust_domain_of(seen.own_tls.name) or trust_domain_of(named) or "")
        if who is None or role not in who.roles or (backend and not who.may_serve(backend)):
            what = f"{role} of {backend}" if backend else str(role)
            text = f"{named} answers at {announced.address}, and is no {what} of this mesh"
            fix = "another one passes for it: find out for whom that certificate was issued, and by whom"
            yield MeshFinding(Section.CERTIFICATES, Severity.ERROR, announced.subject, text, fix)


def security(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Plain text where others can read it."""
    if seen.own_tls.by_tls:
        yield ok(Section.SECURITY, "all connections of this command to members of the mesh are by TLS")
        return
    members = [it for it in seen.answers if it.ingress is None]
    exposed = [it for it in members if not is_loopback(parse_host_port(it.announced.address)[0])]
    if not exposed:
        yield ok(Section.SECURITY, "in plain text, on loopback only")
    if reached := [it.announced.address for it in exposed if not it.problem]:
        text = f"in plain text and without asking who calls: {_named(reached)}"
        fix = "`slotmesh certs init` once, then start each with --tls-dir certs in place of --insecure"
        yield MeshFinding(Section.SECURITY, Severity.WARNING, "", text, fix)
    if unreached := [it.announced.address for it in exposed if it.problem]:
        text = f"{len(unreached)} of {len(members)} addresses are not on loopback and do not answer from here, so it is"
        text += f" not known whether they use TLS: {_named(unreached)}"
        yield MeshFinding(Section.SECURITY, Severity.WARNING, "", text, INSIDE)


def versions(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Of servers, and of this command."""
    by_version: dict[str, list[str]] = {}
    for each in seen.answers:
        if each.info.version:
            by_version.setdefault(each.info.version, []).append(each.announced.subject)
    if len(by_version) > 1:
        fix = "finish the upgrade: what both understand works meanwhile"
        for version, subjects in sorted(by_version.items(), key=lambda it: len(it[1]))[:-1]:
            text = f"several versions: {version} at {_named(subjects)}"
            yield MeshFinding(Section.VERSIONS, Severity.WARNING, "", text, fix)
    others = sorted(set(by_version) - {seen.own_version})
    if others:
        text = f"this command is of {seen.own_version}, servers of {', '.join(others)}"
        fix = "use the command of the servers' version: what it does not know it cannot show"
        yield MeshFinding(Section.VERSIONS, Severity.WARNING, "", text, fix)
    elif by_version:
        yield ok(Section.VERSIONS, f"all of {seen.own_version}")


def clocks(seen: SeenMesh) -> Iterator[MeshFinding]:
    """How far they are from each other."""
    known = [it for it in seen.answers if it.ahead_s is not None]
    aheads = [(it.ahead_s or 0.0, it) for it in known] + [(0.0, None)]
    median = sorted(ahead for ahead, _ in aheads)[len(aheads) // 2]
    worst = Severity.OK
    for ahead_s, answer in aheads:
        uncertain_s = answer.uncertain_s if answer is not None else 0.0
        off_s = max(0.0, abs(ahead_s - median) - uncertain_s)
        if off_s < CLOCK_DIFFERS_S:
            continue
        worst = Severity.ERROR if off_s >= CLOCK_WRONG_S else Severity.WARNING
        subject = answer.announced.subject if answer is not None else ""
        way = "ahead of" if ahead_s > median else "behind"
        text = f"the clock of {subject or 'this machine'} is {_span(off_s)} {way} the others"
        yield MeshFinding(Section.CLOCKS, worst, subject, text, "have the machine set its clock by NTP (chrony)")
    if known and worst is Severity.OK:
        yield ok(Section.CLOCKS, f"{len(known)} clocks differ by less than {CLOCK_DIFFERS_S:g} s")


def descriptors(seen: SeenMesh) -> Iterator[MeshFinding]:
    """How many of them are left."""
    known = [(it.announced.subject, it.info) for it in seen.answers]
    known = [(subject, it) for subject, it in known if it.open_descriptors and it.max_descriptors]
    for subject, info in known:
        share = info.open_descriptors / info.max_descriptors
        if share < MANY_DESCRIPTORS:
            continue
        severity = Severity.ERROR if share >= FULL_DESCRIPTORS else Severity.WARNING
        text = f"{subject} has {info.open_descriptors:,} of {info.max_descriptors:,} descriptors open"
        fix = "raise its limit (ulimit -n, LimitNOFILE=), or add routers: a connection takes one"
        yield MeshFinding(Section.DESCRIPTORS, severity, subject, text, fix)
    if known:
        most = max(info.open_descriptors / info.max_descriptors for _, info in known)
        yield ok(Section.DESCRIPTORS, f"at most {most:.1%} of what a process may open is open")


def exports(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Whether collectors take traces and metrics."""
    known = [(it.announced.subject, it.info.exports) for it in seen.answers if it.info.HasField("exports")]
    fix = "start the collector of --otlp-endpoint (OTEL_EXPORTER_OTLP_ENDPOINT), or correct that; logs have the reason"
    dropped = sum(it.dropped_spans for _, it in known)
    is_well = True
    for signal, failing in (
        ("traces", [(name, it.traces_fail_time) for name, it in known if it.HasField("traces_fail_time")]),
        ("metrics", [(name, it.metrics_fail_time) for name, it in known if it.HasField("metrics_fail_time")]),
    ):
        if not failing:
            continue
        is_well = False
        for_s = max(0.0, seen.now - min(unix_time(since) for _, since in failing))
        lost = f"; {dropped:,} spans were dropped" if signal == "traces" else ""
        text = (
            f"no collector has taken all {signal} of {_named([name for name, _ in failing])} for {_span(for_s)}{lost}"
        )
        yield MeshFinding(Section.EXPORTS, Severity.WARNING, "", text, fix)
    if known and is_well:
        earlier = f"; {dropped:,} spans were dropped earlier" if dropped else ""
        yield ok(Section.EXPORTS, f"collectors take the exports of {len(known)} servers{earlier}")


def _named(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )


def _span(seconds: float) -> str:
    """As people say it, in the largest unit that fits."""
    for unit, size in (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


_SECTION = Section.CERTIFICATES
_MINUTE: Final = "%Y-%m-%d %H:%M UTC"


def revocations(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Who was revoked is still let in by a server that has an older list, or none."""
    reports = [(it.announced.subject, it.info.tls) for it in seen.answers if it.info.HasField("tls")]
    for subject, tls in reports:
        if tls.keeps_older_files:
            text = f"{subject} cannot use its files of certificates and lists as they are, and goes by what was in them"
            yield MeshFinding(_SECTION, Severity.ERROR, subject, text, "its log has the reason: `cannot be read again`")
    newest = _newest(tls for _, tls in reports)
    if not newest:
        return
    have_it = 0
    for subject, tls in reports:
        made = {it.id: time_of(it, "list_create_time") for it in tls.authorities if it.id in newest}
        older = [(made_at, newest[authority]) for authority, made_at in made.items() if made_at != newest[authority]]
        for made_at, there_is in older:
            has = "no list" if made_at is None else f"a list of {made_at:{_MINUTE}}"
            others = f"others one of {there_is:{_MINUTE}}"
            text = f"{subject} has {has} of revoked certificates, {others}: it lets in who is in that"
            fix = "give it the newest ca.crl, beside its ca.crt or as --tls-crl; it reads it by itself"
            yield MeshFinding(_SECTION, Severity.ERROR, subject, text, fix)
        if not older:
            have_it += 1
            ends_at = time_of(tls, "lists_expire_time")
            if ends_at is not None and ends_at.timestamp() <= seen.now:
                ended = f"{ends_at:{_MINUTE}}"
                text = f"the list of revoked certificates at {subject} should have been replaced by {ended}"
                fix = "it counts until then and after; get a newer one of the authority that has made it"
                yield MeshFinding(_SECTION, Severity.WARNING, subject, text, fix)
    for each in seen.answers:
        if each.info.version and not each.info.HasField("tls") and each.ingress is None:
            subject = each.announced.subject
            text = f"{subject} does not say which list of revoked certificates it has"
            fix = "it is in plain text, and requests no certificates"
            yield MeshFinding(_SECTION, Severity.WARNING, subject, text, fix)
    revoked = max(tls.revoked for _, tls in reports)
    newest_made = f"{max(newest.values()):{_MINUTE}}"
    yield ok(
        _SECTION, f"{have_it} servers have the newest list of revoked certificates, of {newest_made}: {revoked} in it"
    )


def _newest(facts: Iterable[TlsStanding]) -> dict[str, datetime]:
    """When the newest list of each authority was made."""
    newest: dict[str, datetime] = {}
    for each in (each for tls in facts for each in tls.authorities):
        if (made_at := time_of(each, "list_create_time")) is not None:
            newest[each.id] = max(made_at, newest.get(each.id, made_at))
    return newest


def _when(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):{_MINUTE}}"


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
        text = f"{silent} report neither version nor routes without a token that may call (SLOTMESH_TOKEN)"
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
        fix = credential_fix(facts.not_ready) or fix
        return MeshFinding(Section.HTTP, Severity.ERROR, subject, text, fix)
    if facts.routes_held:
        text = f"ingress {address} keeps its routes: the state file of the controller that it follows is an older copy"
        fix = "end the hold of the controller: `slotmesh status` shows how"
        return MeshFinding(Section.HTTP, Severity.WARNING, subject, text, fix)
    if facts.follows_controller is False:
        text = f"ingress {address} is not connected to a controller that leads: its routes may be old"
        fix = "see its log, and whether its --controller names all controllers"
        return MeshFinding(Section.HTTP, Severity.WARNING, subject, text, fix)
    return None
