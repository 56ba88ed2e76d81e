"""`slotmesh describe`: a backend, its replicas, and why so many should run; or an endpoint, and how it is shifted."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from slotmesh.cli.commands.traffic import traffic
from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import complete
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress
from slotmesh.cli.snapshot import BackendDescription
from slotmesh.cli.subjects import BACKEND, ENDPOINT, name_of
from slotmesh.cli.view.described import as_json, print_described


def describe(
    name: Annotated[
        str,
        typer.Argument(metavar="BACKEND|endpoint/NAME", help="The backend or endpoint, as other commands print it."),
    ],
    as_document: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show a backend: its settings, its replicas, and where its load decides how many run, why; or an endpoint.

    Of decisions it shows the newest look at the load, and the newest that changed the number, each with its figures.
    """
    kind, slash, endpoint = name.partition("/")
    if slash and kind == ENDPOINT:
        traffic(endpoint, as_document=as_document, address=address)
        return
    described = complete(_ask(address, name_of(BACKEND)(name)))
    if as_document:
        typer.echo(json.dumps(as_json(described), indent=2))
    else:
        print_described(described, sys.stdout)


async def _ask(address: str, backend: str) -> BackendDescription:
    async with Operator.at(address) as operator:
        return await operator.describe_backend(backend)
