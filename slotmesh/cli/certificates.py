"""The work of `slotmesh certs`: creates a development authority; issues, renews and revokes its certificates.

Invariants: an authority is never overwritten; a refusal names the way out; files are written whole or not at all.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import typer

from slotmesh.cli.console import FAILED
from slotmesh.security.identity import Role, trust_domain_of
from slotmesh.security.tls import BadTls, revoking
from slotmesh.security.tls.authority import (
    LONGEST,
    SHORTEST,
    Authority,
    Subject,
    create_authority,
    load_authority,
    replace,
)
from slotmesh.security.tls.certificates import Issued
from slotmesh.security.tls.files import CA_KEY_FILE, HeldCertificate, certificates_in, held_in, read_pem
from slotmesh.security.tls.revoking import Revoking
from slotmesh.security.tls_paths import CA_FILE, CRL_FILE, identity_of_file

DAYS: Final = 90
"""The default lifetime of certificates."""
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class CertificatePlace:
    """Where an authority is, and what it has issued."""

    directory: Path
    ca_key: Path

    @classmethod
    def of(cls, directory: Path, ca_key: Path | None) -> CertificatePlace:
        """`ca_key` None: it is in the directory."""
        return cls(directory, ca_key or directory / CA_KEY_FILE)

    @property
    def ca(self) -> Path:
        """The certificate of the authority."""
        return self.directory / CA_FILE

    @property
    def crl(self) -> Path:
        """What the authority has taken back."""
        return self.directory / CRL_FILE

    def authority(self) -> Authority:
        """Raises BadTls."""
        return load_authority(self.ca, self.ca_key)


def lifetime_of(days: int | None, hours: int | None) -> timedelta:
    """As it was asked for. Raises typer.BadParameter."""
    if days is not None and hours is not None:
        raise typer.BadParameter("contradicts --days: give one of them", param_hint="--hours")
    return timedelta(hours=hours) if hours is not None else timedelta(days=DAYS if days is None else days)


def initialise(place: CertificatePlace, trust_domain: str, operator: str | None, lifetime: timedelta) -> list[Path]:
    """Makes an authority, and certificates of the services and an operator. Returns their paths. Raises BadTls."""
    written = [*(str(role) for role in (Role.CONTROLLER, Role.ROUTER, Role.REPLICA)), f"operator/{operator or _user()}"]
    for each in written:
        subject_of(trust_domain, each)
    authority = create_authority(place.ca, place.ca_key, trust_domain)
    return [authority.issue(place.directory, subject_of(trust_domain, each), lifetime) for each in written]


def issue(
    place: CertificatePlace, written: str, dns_names: Sequence[str], out: Path | None, lifetime: timedelta
) -> Path:
    """Issues a certificate for `KIND` or `KIND/NAME`, in `out` with the authority's, and its list, beside it.

    Raises:
        BadTls: it cannot be issued or written.
    """
    authority = place.authority()
    subject = subject_of(authority.trust_domain, written, dns_names)
    if out is None:
        return authority.issue(place.directory, subject, lifetime)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadTls(f"{out}: cannot be made: {error.strerror}") from None
    for path, what in ((place.ca, "certificate of the authority"), (place.crl, "list of revoked certificates")):
        if path.exists() and out.resolve() != place.directory.resolve():
            replace(out / path.name, read_pem(path, what), mode=0o644)
    return authority.issue(out, subject, lifetime)


def rotate(place: CertificatePlace, names: Sequence[str], lifetime: timedelta | None) -> list[Path]:
    """Renews all certificates of the directory, or those with these names.

    Without a `lifetime` each keeps the lifetime that it had.

    Raises:
        BadTls: one cannot be issued again; those before it were.
    """
    authority = place.authority()
    held = {each.name: each for each in certificates_in(place.directory) if not each.is_authority}
    wanted = [name.replace("/", "-") for name in names] or list(held)
    if unknown := [name for name in wanted if name not in held]:
        there = ", ".join(held) or "none"
        raise BadTls(f"{place.directory / unknown[0]}.crt: there is none to issue again; there are: {there}")
    return [_again(authority, place, held[name], lifetime) for name in wanted]


def revoke(
    place: CertificatePlace, names: Sequence[str], files: Sequence[Path], *, keep_current: bool
) -> tuple[Revoking, list[HeldCertificate]]:
    """Takes back what was issued to these names so far, and the certificates of these files.

    `keep_current`: what was issued to each of these names last stays. Returns what came of it, and which certificates
    of the directory were taken back now.

    Raises:
        BadTls: nothing was taken back.
    """
    authority = place.authority()
    if not names and not files:
        raise BadTls("whose certificates? Give KIND or KIND/NAME, as client/alice, or --file PATH")
    entries: list[Issued] = []
    for name in names:
        subject = subject_of(authority.trust_domain, _written(name, authority.trust_domain))
        entries += _issued_to(authority, place.directory / f"{subject.stem}.crt", subject, keep_current=keep_current)
    entries += [Issued.of(authority.own_certificate(path)) for path in files]
    done = revoking.revoke(authority, place.crl, entries)
    held = certificates_in(place.directory)
    return done, [each for each in held if each.certificate and each.certificate.serial_number in done.added]


def _written(name: str, trust_domain: str) -> str:
    """`client/alice`, for its URI and for the name of its file as well."""
    written = name.removeprefix(f"spiffe://{trust_domain}/")
    return written if "/" in written else identity_of_file(written)


def _issued_to(authority: Authority, path: Path, subject: Subject, *, keep_current: bool) -> list[Issued]:
    """`path`: where the newest certificate is, where there is no record of it.

    Raises:
        BadTls: there are none.
    """
    entries = authority.issued.of(subject.uri)
    try:
        held = [Issued.of(authority.own_certificate(path), subject.uri)] if path.exists() else []
    except BadTls:
        if not entries:
            raise
        held = []  # the record knows all that was issued
    known = {each.serial for each in entries}
    entries = [*(each for each in held if each.serial not in known), *entries]
    if found := entries[:-1] if keep_current else entries:
        return found
    beside = ", beside the one that is kept" if entries else ""
    raise BadTls(
        f"{authority.issued.path}: nothing was issued to {subject.uri} that has not ended{beside}; "
        "--file takes back a certificate that you have"
    )


def subject_of(trust_domain: str, written: str, dns_names: Sequence[str] = ()) -> Subject:
    """Raises BadTls."""
    try:
        return Subject.of(trust_domain, written, tuple(dns_names))
    except ValueError as error:
        raise BadTls(str(error)) from None


@contextmanager
def reported() -> Iterator[None]:
    """What cannot be done becomes words on stderr, and an exit status."""
    try:
        yield
    except BadTls as failure:
        typer.echo(str(failure), err=True)
        raise typer.Exit(FAILED) from failure


def _again(authority: Authority, place: CertificatePlace, held: HeldCertificate, lifetime: timedelta | None) -> Path:
    certificate = held.certificate
    if certificate is None:
        raise BadTls(f"{held.path}: {held.problem}; issue it with `slotmesh certs issue`")
    if len(certificate.uris) != 1 or trust_domain_of(certificate.uris[0]) != authority.trust_domain:
        raise BadTls(f"{held.path}: names no identity of {authority.trust_domain}; move it, or name those to rotate")
    written = certificate.uris[0].removeprefix(f"spiffe://{authority.trust_domain}/")
    subject = subject_of(authority.trust_domain, written, certificate.dns_names)
    if subject.stem != held.name:
        raise BadTls(f"{held.path}: names {written}, whose file is {subject.stem}.crt; rename it and its key")
    before = timedelta(seconds=certificate.not_after - certificate.not_before)
    # It begins some minutes before it was issued: whole hours are what was asked for.
    whole_hours = timedelta(hours=before // timedelta(hours=1))
    return authority.issue(place.directory, subject, lifetime or min(max(whole_hours, SHORTEST), LONGEST))


def until(path: Path) -> str:
    """When the certificate of a file ends, for people. Raises BadTls."""
    held = held_in(path)
    ends = 0.0 if held.certificate is None else held.certificate.not_after
    return datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _user() -> str:
    """The name of who runs the command, as far as identities may have it."""
    try:
        name = _NOT_IN_NAMES.sub("", getpass.getuser()).lstrip("_.-")[:63]
    except (OSError, KeyError):
        name = ""
    return name or "admin"
