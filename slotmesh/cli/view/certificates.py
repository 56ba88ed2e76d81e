"""Certificates of a directory as a table for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TextIO

from rich.text import Text

from slotmesh.cli.view.report import console_of, new_table
from slotmesh.security.tls.directory import HeldCertificate

_STYLES: Final = {"ok": "green"}
_RED: Final = "red"


def print_certificates(held: Sequence[HeldCertificate], now: float, out: TextIO) -> None:
    """Writes a row a file. Red: less than a fifth of its time is left, or it cannot be used. `now`: since 1970."""
    table = new_table("Certificates", "name", "identity", "DNS names", "until (UTC)", "left")
    for each in held:
        state = each.state(now)
        if (certificate := each.certificate) is None:
            table.add_row(each.name, Text(each.problem, style=_RED), "", "", "")
            continue
        style = _STYLES.get(state, _RED)
        left = _left(certificate.not_after - now) if state in ("ok", "ends-soon") else state.replace("-", " ")
        table.add_row(
            each.name,
            "\n".join(certificate.uris),
            "\n".join(certificate.dns_names),
            Text(f"{_time(certificate.not_after):%Y-%m-%d %H:%M}", style=style),
            Text(left, style=style),
        )
    console_of(out).print(table)


def as_json(held: Sequence[HeldCertificate], now: float) -> dict[str, Any]:
    """The same, as values of JSON."""
    return {"certificates": [_document(each, now) for each in held]}


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
        "not_before": None if certificate is None else _time(certificate.not_before).isoformat(),
        "not_after": None if certificate is None else _time(certificate.not_after).isoformat(),
    }


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _left(seconds: float) -> str:
    left = timedelta(seconds=seconds)
    return f"{left.days} days" if left >= timedelta(days=2) else f"{left // timedelta(hours=1)} hours"
