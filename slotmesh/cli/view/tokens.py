"""Static tokens as `slotmesh token` shows them: never what could be used."""

from __future__ import annotations

from functools import partial
from typing import Any, TextIO

from rich.text import Text

from slotmesh.cli.output import Printable
from slotmesh.cli.view.report import console_of, new_table
from slotmesh.security.identity import Identity
from slotmesh.security.tokens.document import shown, time_text
from slotmesh.security.tokens.registry import state_of
from slotmesh.security.tokens.static_tokens import StaticTokens

_COLOURS = {"valid": "green", "expired": "yellow", "revoked": "red"}


def printable_tokens(tokens: StaticTokens, now: float) -> Printable:
    """All of a file. `now`: seconds since 1970."""
    return Printable(
        table=partial(_print, tokens, now),
        document=partial(_document, tokens, now),
        names=lambda: [each.id for each in tokens.tokens],
    )


def lifetime(identity: Identity, now: float) -> str:
    """Until when a token is accepted, in words."""
    if identity.expires_at is None:
        return "which does not expire"
    left_s = identity.expires_at - now
    left = f"{left_s / 86_400:.0f} days" if left_s >= 2 * 86_400 else f"{left_s / 60:.0f} minutes"
    return f"valid until {time_text(identity.expires_at)} ({left})"


def _document(tokens: StaticTokens, now: float) -> dict[str, Any]:
    return {"tokens": [{**shown(each), "state": state_of(each, now)} for each in tokens.tokens]}


def _print(tokens: StaticTokens, now: float, out: TextIO) -> None:
    table = new_table("Tokens", "id", "identity", "roles", "endpoints", "created", "expires", "state")
    for each in tokens.tokens:
        fields, state = shown(each), state_of(each, now)
        table.add_row(
            each.id,
            fields["identity"],
            ", ".join(fields["roles"]),
            ", ".join(fields.get("endpoints", ["all"])),
            fields["created"],
            fields["expires"] or "never",
            Text(state, style=_COLOURS[state]),
        )
    console_of(out).print(table)
