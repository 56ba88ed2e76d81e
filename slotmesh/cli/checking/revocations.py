"""Whether all servers go by the newest list of revoked certificates, and by the files that they have. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from slotmesh.cli.checking.finding import MeshFinding, Section, Severity, ok
from slotmesh.cli.checking.seen import SeenMesh, TlsFacts

_SECTION = Section.CERTIFICATES


def revocations(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Who was revoked is still let in by a server that has an older list, or none."""
    told = [(it.announced.subject, it.tls) for it in seen.answers if it.tls is not None]
    for subject, tls in told:
        if tls.keeps_older_files:
            text = f"{subject} cannot use its files of certificates and lists as they are, and goes by what was in them"
            yield MeshFinding(_SECTION, Severity.ERROR, subject, text, "its log has the reason: `cannot be read again`")
    newest = _newest(tls for _, tls in told)
    if not newest:
        return
    have_it = 0
    for subject, tls in told:
        older = [
            (made_at, newest[authority])
            for authority, made_at in tls.lists_made_at.items()
            if authority in newest and made_at != newest[authority]
        ]
        for made_at, there_is in older:
            has = "no list" if made_at is None else f"a list of {_when(made_at)}"
            others = f"others one of {_when(there_is)}"
            text = f"{subject} has {has} of revoked certificates, {others}: it lets in who is in that"
            fix = "give it the newest ca.crl, beside its ca.crt or as --tls-crl; it reads it by itself"
            yield MeshFinding(_SECTION, Severity.ERROR, subject, text, fix)
        if not older:
            have_it += 1
            if tls.lists_end_at is not None and tls.lists_end_at <= seen.now:
                ended = _when(tls.lists_end_at)
                text = f"the list of revoked certificates at {subject} should have been replaced by {ended}"
                fix = "it counts until then and after; get a newer one of the authority that has made it"
                yield MeshFinding(_SECTION, Severity.WARNING, subject, text, fix)
    for each in seen.answers:
        if each.version and each.tls is None and each.ingress is None:
            subject = each.announced.subject
            text = f"{subject} does not say which list of revoked certificates it has"
            fix = "it is of an older version, or in plain text, and asks for no certificates"
            yield MeshFinding(_SECTION, Severity.WARNING, subject, text, fix)
    revoked = max(tls.revoked for _, tls in told)
    made = _when(max(newest.values()))
    yield ok(_SECTION, f"{have_it} servers have the newest list of revoked certificates, of {made}: {revoked} in it")


def _newest(facts: Iterable[TlsFacts]) -> dict[str, float]:
    """When the newest list of each authority was made."""
    newest: dict[str, float] = {}
    for tls in facts:
        for authority, made_at in tls.lists_made_at.items():
            if made_at is not None:
                newest[authority] = max(made_at, newest.get(authority, made_at))
    return newest


def _when(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
