"""`slotmesh certs`: a development authority, and certificates for a mesh."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from slotmesh.cli.console import UNWELL, AsJson, Output, OutputForm, TableColumns, form_of, listing
from slotmesh.security.tls_paths import identity_of_file

if TYPE_CHECKING:
    from slotmesh.security.tls.files import HeldCertificate  # it loads cryptography

_VALID: Final = ("ok", "ends-soon")


def _document(each: HeldCertificate, now: float) -> dict[str, Any]:
    certificate = each.certificate
    return {
        "name": each.name,
        "file": str(each.path),
        "state": each.state(now),
        "problem": each.problem,
        "serial": None if certificate is None else f"{certificate.serial_number:x}",
        "identities": [] if certificate is None else list(certificate.uris),
        "dns_names": [] if certificate is None else list(certificate.dns_names),
        "not_before": None if certificate is None else datetime.fromtimestamp(certificate.not_before, UTC).isoformat(),
        "not_after": None if certificate is None else datetime.fromtimestamp(certificate.not_after, UTC).isoformat(),
    }


def _styled(it: dict[str, Any], text: str) -> Text:
    """Red: less than a fifth of its time is left, or it cannot be used."""
    return Text(text, style="green" if it["state"] == "ok" else "red")


def _left(it: dict[str, Any], now: datetime) -> Text | str:
    if it["state"] not in _VALID:
        return _styled(it, it["state"].replace("-", " ")) if it["not_after"] else ""
    left = datetime.fromisoformat(it["not_after"]) - now
    in_days = left >= timedelta(days=2)
    return _styled(it, f"{left.days} days" if in_days else f"{left // timedelta(hours=1)} hours")


def _columns(now: float) -> TableColumns[dict[str, Any]]:
    return {
        "name": lambda it: it["name"],
        "identity": lambda it: "\n".join(it["identities"]) or _styled(it, it["problem"]),
        "DNS names": lambda it: "\n".join(it["dns_names"]),
        "until (UTC)": lambda it: _styled(it, it["not_after"][:16].replace("T", " ")) if it["not_after"] else "",
        "left": lambda it: _left(it, datetime.fromtimestamp(now, UTC)),
    }


# What makes certificates takes most of a second to import: the commands do so, when they run.
certs = typer.Typer(name="certs", no_args_is_help=True, help="Make certificates for TLS, and see when they expire.")

Directory = Annotated[
    Path, typer.Option("--dir", envvar="SLOTMESH_TLS_DIR", metavar="DIR", help="Where the certificates are.")
]
CaKey = Annotated[
    Path | None, typer.Option("--ca-key", metavar="PATH", help="The authority's key, where it is not DIR/ca.key.")
]
Days = Annotated[
    int | None, typer.Option("--days", metavar="N", min=1, max=366, help="How long they last, 1 to 366 days.")
]
Hours = Annotated[
    int | None, typer.Option("--hours", metavar="N", min=24, max=8_784, help="The same in hours, 24 to 8784.")
]
CERTS = Path("certs")


@certs.command()
def init(
    directory: Directory = CERTS,
    trust_domain: Annotated[
        str, typer.Option("--trust-domain", metavar="DOMAIN", help="What the identities of this mesh belong to.")
    ] = "slotmesh.local",
    operator: Annotated[
        str | None, typer.Option("--operator", metavar="NAME", help="The operator's name; your own unless given.")
    ] = None,
    ca_key: CaKey = None,
    days: Days = None,
    hours: Hours = None,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Do nothing where there is an authority already.")
    ] = False,
) -> None:
    """Make an authority for development, and certificates for a controller, routers, replicas and an operator.

    All use them with `--tls-dir DIR` or `SLOTMESH_TLS_DIR`. The holder of DIR/ca.key can issue any
    identity of this mesh: services do not need it.
    """
    from slotmesh.cli import certificates  # noqa: PLC0415 - see above

    place, lifetime = certificates.CertificatePlace.of(directory, ca_key), certificates.lifetime_of(days, hours)
    with certificates.reported():
        if if_missing and place.ca.exists():
            typer.echo(f"{place.ca}: there is an authority already")
            return
        paths = certificates.initialise(place, trust_domain, operator, lifetime)
        typer.echo(f"{place.ca}: an authority of {trust_domain}; keep its key to yourself: {place.ca_key}")
        for path in paths:
            typer.echo(f"{path}: until {certificates.until(path)}")
    typer.echo(f"Use them with --tls-dir {directory}, or SLOTMESH_TLS_DIR={directory}")


@certs.command()
def issue(
    who: Annotated[
        str,
        typer.Argument(
            metavar="KIND[/NAME]",
            help="controller, router, replica, replica/BACKEND, ingress, client/NAME, viewer/NAME or operator/NAME.",
        ),
    ],
    directory: Directory = CERTS,
    ca_key: CaKey = None,
    dns: Annotated[
        list[str] | None,
        typer.Option("--dns", metavar="NAME", help="A DNS name beside those of the role; may be given several times."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Where to write it, with ca.crt and ca.crl; beside the authority unless given."
        ),
    ] = None,
    days: Days = None,
    hours: Hours = None,
) -> None:
    """Issue a certificate, in place of the one that there may be.

    Like this:

        slotmesh certs issue client/alice --days 7
    """
    from slotmesh.cli import certificates  # noqa: PLC0415 - see above

    place, lifetime = certificates.CertificatePlace.of(directory, ca_key), certificates.lifetime_of(days, hours)
    with certificates.reported():
        path = certificates.issue(place, who, dns or [], out, lifetime)
        typer.echo(f"{path}: until {certificates.until(path)}")


@certs.command()
def rotate(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[KIND[/NAME]]...", help="Which ones; all of them unless given.")
    ] = None,
    directory: Directory = CERTS,
    ca_key: CaKey = None,
    days: Days = None,
    hours: Hours = None,
) -> None:
    """Issue certificates again, with new keys, for as long as they were issued before.

    Services take the new ones within a second or two, and no connection ends.
    """
    from slotmesh.cli import certificates  # noqa: PLC0415 - see above

    lifetime: timedelta | None = None
    if days is not None or hours is not None:
        lifetime = certificates.lifetime_of(days, hours)
    with certificates.reported():
        for path in certificates.rotate(certificates.CertificatePlace.of(directory, ca_key), names or [], lifetime):
            typer.echo(f"{path}: until {certificates.until(path)}")


@certs.command()
def revoke(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[KIND[/NAME]]...", help="Whose: all that was issued to them so far.")
    ] = None,
    directory: Directory = CERTS,
    ca_key: CaKey = None,
    keep_current: Annotated[
        bool, typer.Option("--keep-current", help="All but the one that was issued last, in whatever directory.")
    ] = False,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="PATH", help="A certificate that is elsewhere; may be given several times."),
    ] = None,
) -> None:
    """Take certificates back before they end: who shows one is refused, on connections and streams that are open too.

    Writes the list DIR/ca.crl, which services read beside ca.crt (`--tls-dir`, or `--tls-crl`). Like this:

        slotmesh certs revoke client/alice
    """
    from slotmesh.cli import certificates  # noqa: PLC0415 - see above

    place = certificates.CertificatePlace.of(directory, ca_key)
    with certificates.reported():
        is_recorded = place.authority().issued.is_there
        done, held = certificates.revoke(place, names or [], files or [], keep_current=keep_current)
    if names and not is_recorded:
        typer.echo("There is no record of what was issued: certificates that are not in DIR need --file", err=True)
    count = f"{len(done.added)} certificate{'' if len(done.added) == 1 else 's'} revoked"
    what = count if done.added else f"nothing new, all of them were revoked before ({done.total} in the list)"
    typer.echo(f"{place.crl}: {what}; give this list to all services, beside their ca.crt")
    typer.echo("They refuse who shows one within 5 seconds")
    for each in held:
        typer.echo(f"{each.path}: is one of those; `slotmesh certs issue {identity_of_file(each.name)}` makes another")


@certs.command()
def show(directory: Directory = CERTS, as_document: AsJson = False, output: Output = OutputForm.TABLE) -> None:
    """Show whom the certificates of a directory name, and until when.

    Red: less than a fifth of the time is left. Exit status 4: one has expired, was revoked, or cannot be used.
    """
    from slotmesh.cli import certificates  # noqa: PLC0415 - see above
    from slotmesh.security.tls.files import certificates_in, revoked_in  # noqa: PLC0415 - see above

    form, now = form_of(output, as_document), time.time()
    with certificates.reported():
        held = certificates_in(directory, revoked_in(directory))
    rows = [_document(each, now) for each in held]
    listing("Certificates", rows, _columns(now), "name").write(form)
    if any(row["state"] not in _VALID for row in rows):
        raise typer.Exit(UNWELL)
