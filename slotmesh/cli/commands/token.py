"""`slotmesh token`: static bearer tokens. A file (`--tokens`) holds their hashes; a token is shown only once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.text import Text

from slotmesh.cli.console import FAILED, WRONG_INPUT, Output, OutputForm, TableColumns, listing
from slotmesh.security.identity import Identity, Role
from slotmesh.security.secret_files import UnusableFile
from slotmesh.security.tokens.rules import KINDS, is_holder_name, roles_of
from slotmesh.security.tokens.static_tokens import (
    FORM,
    ID_FORM,
    MAX_ENDPOINTS,
    StaticTokens,
    new_secret,
    shown,
    time_text,
)
from slotmesh.security.tokens.token_file import NoSuchChange, change_tokens, state_of, with_created, with_revoked
from slotmesh.security.tokens.verifier import read_static
from slotmesh.spec.rules import is_name
from slotmesh.units import parse_duration

_COLOURS = {"valid": "green", "expired": "yellow", "revoked": "red"}


def lifetime(identity: Identity, now: float) -> str:
    """Until when a token is accepted, in words."""
    if identity.expires_at is None:
        return "which does not expire"
    left_s = identity.expires_at - now
    left = f"{left_s / 86_400:.0f} days" if left_s >= 2 * 86_400 else f"{left_s / 60:.0f} minutes"
    return f"valid until {time_text(identity.expires_at)} ({left})"


_COLUMNS: Final[TableColumns[dict[str, Any]]] = {
    "id": lambda it: it["id"],
    "identity": lambda it: it["identity"],
    "roles": lambda it: ", ".join(it["roles"]),
    "endpoints": lambda it: ", ".join(it.get("endpoints", ["all"])),
    "created": lambda it: it["created"],
    "expires": lambda it: it["expires"] or "never",
    "state": lambda it: Text(it["state"], style=_COLOURS[it["state"]]),
}


NEVER = "never"
LONGEST = timedelta(days=3650)

token = typer.Typer(
    name="token", no_args_is_help=True, help="Create, list or revoke static bearer tokens of clients and operators."
)


TokenRole = Literal["invoker", "viewer", "operator"]
TokenFile = Annotated[
    Path,
    typer.Option(
        "--file", "-f", envvar="SLOTMESH_TOKENS", metavar="FILE", help="The file that servers have with --tokens."
    ),
]
TOKENS = Path("tokens.json")


def _lifetime(text: str | timedelta) -> timedelta | None:
    if isinstance(text, timedelta):
        return text
    if text == NEVER:
        return None
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or `{NEVER}`") from None
    if not timedelta(seconds=1) <= duration <= LONGEST:
        raise typer.BadParameter(f"expected 1s to {LONGEST.days}d, or `{NEVER}`, got {text!r}")
    return duration


@token.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who holds it, as logs and quotas will name them.")],
    *,
    role: Annotated[
        TokenRole,
        typer.Option(help="Calls endpoints (invoker), sees what runs (viewer), or changes it and all else (operator)."),
    ] = "invoker",
    endpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="ENDPOINT", help="An endpoint that it is limited to; more than one, too. None: all."),
    ] = None,
    expires: Annotated[
        timedelta | None,
        typer.Option(
            parser=_lifetime, metavar="DURATION", show_default="30d", help=f"When it ends, as 12h or 90d; or `{NEVER}`."
        ),
    ] = timedelta(days=30),
    file: TokenFile = TOKENS,
) -> None:
    """Create a token, and print it: this once, and nothing else on stdout. The file gets its hash only.

    Servers that have the file with `--tokens` accept it a second later. Its holder sends it as
    `authorization: Bearer TOKEN`; the commands take it from SLOTMESH_TOKEN.

    Like this:

        slotmesh token create alice --endpoint digits --expires 90d > alice.token
        SLOTMESH_TOKEN=$(slotmesh token create ops --role operator --expires 12h)
    """
    if not is_holder_name(name):
        raise typer.BadParameter("1 to 63 of `a-z A-Z 0-9 _ . -`, a letter or digit first", param_hint="NAME")
    limits = _limits(endpoint or [], role)
    kind, now = KINDS[Role(role)], time.time()
    expires_at = None if expires is None else float(int(now + expires.total_seconds()))
    identity = Identity(name=f"{kind}/{name}", roles=roles_of(kind), endpoints=limits, expires_at=expires_at)
    secret, token_id = new_secret()
    with _in_words(file):
        change_tokens(file, lambda tokens: with_created(tokens, secret, token_id, identity, now), create=True)
    typer.echo(
        f"{identity.name}, {lifetime(identity, now)}; it is shown only now. Take it back with"
        f" `slotmesh token revoke {token_id} --file {file}`",
        err=True,
    )
    typer.echo(secret)


@token.command("list")
def list_(output: Output = OutputForm.TABLE, file: TokenFile = TOKENS) -> None:
    """List the tokens of a file: who has them, for what, until when. The tokens themselves are not in it.

    Those that have expired or were revoked are shown for 30 days.

    Like this:

        slotmesh token list
        slotmesh token list --file /etc/slotmesh/tokens.json --output json
    """
    with _in_words(file):
        tokens = read_static(file, of_any_owner=True)
    now = time.time()
    rows = [{**shown(each), "state": state_of(each, now)} for each in tokens.tokens]
    listing("Tokens", rows, _COLUMNS, "id").write(output)


@token.command("revoke")
def revoke(
    tokens: Annotated[
        list[str], typer.Argument(metavar="ID", help="The token's id, as `token list` shows it; more than one, too.")
    ],
    file: TokenFile = TOKENS,
) -> None:
    """Revoke tokens. Servers refuse them within 5 seconds, and end streams that were opened with them.

    Where one of them is not there, nothing is revoked.

    Like this:

        slotmesh token revoke k3v9q0x7ab
    """
    ids = [_id_of(each) for each in tokens]
    now, before = time.time(), StaticTokens()

    def change(read: StaticTokens) -> StaticTokens:
        nonlocal before
        before = read
        return with_revoked(read, ids, now)

    with _in_words(file):
        change_tokens(file, change)
    for each in before.tokens:
        if each.id in ids:
            said = "is revoked" if each.revoked_at is None else "was revoked before"
            typer.echo(f"{each.id} of {each.identity.name} {said}", err=True)


def _limits(endpoints: list[str], role: TokenRole) -> frozenset[str] | None:
    if not endpoints:
        return None
    if role == "viewer":
        raise typer.BadParameter(
            "viewers call no endpoint: leave it out, or give --role invoker", param_hint="--endpoint"
        )
    if wrong := [each for each in endpoints if not is_name(each)]:
        raise typer.BadParameter(f"{wrong[0]!r:.80} is no name of an endpoint", param_hint="--endpoint")
    if len(limits := frozenset(endpoints)) > MAX_ENDPOINTS:
        raise typer.BadParameter(f"at most {MAX_ENDPOINTS}; leave it out for all", param_hint="--endpoint")
    return limits


def _id_of(text: str) -> str:
    """The id that was typed; of a whole token, that was found somewhere and pasted, its id."""
    if found := FORM.fullmatch(text):
        return found[1]
    if not ID_FORM.fullmatch(text):
        raise typer.BadParameter("an id is 10 of a-z and 0-9, as `slotmesh token list` shows it", param_hint="ID")
    return text


@contextmanager
def _in_words(file: Path) -> Iterator[None]:
    try:
        yield
    except UnusableFile as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(FAILED) from error
    except NoSuchChange as error:
        typer.echo(f"{file}: {error}", err=True)
        raise typer.Exit(WRONG_INPUT) from error
