"""`slotmesh status`: what the mesh is made of and how it does."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import complete
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress
from slotmesh.cli.snapshot import Snapshot
from slotmesh.cli.view.report import as_json, print_tables


def status(
    as_document: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
    tracebacks: Annotated[
        bool, typer.Option("--tracebacks", help="Print the whole errors of replicas below the tables.")
    ] = False,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show endpoints, backends, replicas and routers.

    Replicas that failed are listed with their error. Below the tables is where it comes from, once for all replicas of
    a backend that have the same; `--tracebacks` prints all of each, as the JSON document always does. A router whose
    table is not `current` has yet to hear of the newest change.
    """
    snapshot = complete(_ask(address))
    if as_document:
        typer.echo(json.dumps(as_json(address, snapshot), indent=2))
    else:
        print_tables(address, snapshot, sys.stdout, tracebacks=tracebacks)


async def _ask(address: str) -> Snapshot:
    async with Operator.at(address) as operator:
        return await operator.snapshot()
