"""What commands act on, as people type it and as all commands print it: `backend/NAME`, `replica/ID` and so on. Pure.

Invariant: what one command prints as a name, each command that takes such a thing takes: `backend/digits` and `digits`
are the same where a command acts on backends only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import typer

from slotmesh.cli.outcome import CommandFailed
from slotmesh.suggestions import did_you_mean

BACKEND: Final = "backend"
ENDPOINT: Final = "endpoint"
ROUTE: Final = "route"
REPLICA: Final = "replica"
ROUTER: Final = "router"
REVISION: Final = "revision"
KINDS: Final = (BACKEND, ENDPOINT, ROUTE, REPLICA, ROUTER, REVISION)
_MOST_NAMED: Final = 20


def name_of(*kinds: str) -> Callable[[str], str]:
    """Reads the name of one of these kinds, with its kind before it or without. Refuses other kinds."""

    def read(text: str) -> str:
        kind, slash, name = text.partition("/")
        if not slash or kind not in KINDS:
            return text
        if kind not in kinds:
            wanted = " or ".join(f"{each}/NAME" for each in kinds)
            raise typer.BadParameter(f"takes {wanted}, is {text}")
        return name

    return read


def unknown(subject: str, known: Collection[str]) -> CommandFailed:
    """There is no such subject; with the one that was probably meant, else with those that there are."""
    closest = did_you_mean(subject, known)
    if not closest:
        named = ", ".join(sorted(known)[:_MOST_NAMED]) + (", …" if len(known) > _MOST_NAMED else "")
        closest = f"; there is {named}" if known else "; there is none"
    return CommandFailed(f"there is no {subject}{closest}")


def configured_subject(text: str) -> str:
    """Reads a subject of the configuration, which needs its kind: all kinds may have the same names."""
    kind, slash, name = text.partition("/")
    if slash and (kind == ROUTE or (kind in {BACKEND, ENDPOINT} and name)):
        return text
    if slash and kind == REPLICA:
        way_out = "a replica leaves with `slotmesh drain`, and is shown by `slotmesh status` and `slotmesh logs`"
    else:
        way_out = f"say which it is: {BACKEND}/{name or text} or {ENDPOINT}/{name or text}"
    raise typer.BadParameter(f"takes {BACKEND}/NAME, {ENDPOINT}/NAME or {ROUTE}/PATH, is {text}; {way_out}")
