"""Whether all servers go by the newest list of revoked certificates, and by the files that they have. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from slotmesh.cli.checking.finding import MeshFinding, Section, Severity, ok
from slotmesh.cli.checking.seen import SeenMesh

_SECTION = Section.CERTIFICATES


def revocations(seen: SeenMesh) -> Iterator[MeshFinding]:
    """Who was revoked is still let in by a server that has an older list, or none."""
    told = [(it.announced.subject, it.tls) for it in seen.answers if it.tls is not None]
    for subject, tls in told:
        if tls.keeps_older_files:
            text = f"{subject} cannot use its files of certificates and lists as they are, and goes by what was in them"
            yield MeshFinding(_SECTION, Severity.ERROR, subject, text, "its log has the reason: `cannot be read again`")
    made = [tls.lists_made_at for _, tls in told if tls.lists_made_at is not None]
    if not made:
        return
    newest = max(made)
    revoked = max(tls.revoked for _, tls in told if tls.lists_made_at == newest)
    are_newest = 0
    for subject, tls in told:
        if tls.lists_made_at != newest:
            has = "no list" if tls.lists_made_at is None else f"a list of {_when(tls.lists_made_at)}"
            text = (
                f"{subject} has {has} of revoked certificates, others one of {_when(newest)}: it lets in who is in that"
            )
            fix = "give it the newest ca.crl, beside its ca.crt or as --tls-crl; it reads it by itself"
            yield MeshFinding(_SECTION, Severity.ERROR, subject, text, fix)
            continue
        are_newest += 1
        if tls.lists_end_at is not None and tls.lists_end_at <= seen.now:
            text = (
                f"the list of revoked certificates at {subject} should have been replaced by {_when(tls.lists_end_at)}"
            )
            fix = "it counts until then and after; get a newer one of the authority that has made it"
            yield MeshFinding(_SECTION, Severity.WARNING, subject, text, fix)
    yield ok(_SECTION, f"{are_newest} of {len(told)} servers have the newest list: {revoked} revoked, {_when(newest)}")


def _when(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
