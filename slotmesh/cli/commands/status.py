"""`slotmesh status`: the members of the mesh and their state."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from slotmesh.cli.console import FAILED, AsJson, CommandFailed, Output, OutputForm, Printable, complete, form_of
from slotmesh.cli.figures.rows import NO_FIGURES, MeshFigures, figures_of
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress
from slotmesh.cli.snapshot import ControllerStatus, Snapshot
from slotmesh.cli.view.report import as_json, names_in, print_tables
from slotmesh.cli.view.troubles import standby_json, standby_text
from slotmesh.errors import NotLeader
from slotmesh.names import printable_text


def status(
    as_document: AsJson = False,
    output: Output = OutputForm.TABLE,
    tracebacks: Annotated[
        bool, typer.Option("--tracebacks", help="Print the whole errors of replicas below the tables.")
    ] = False,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show endpoints, backends, replicas and routers.

    Replicas that failed are listed with their error. Below the tables is where it comes from, once for all replicas of
    a backend that have the same; `--tracebacks` prints all of each, as JSON and YAML always do. A router whose
    table is not `current` has yet to hear of the newest change. Calls a second are of the last 2 to 3 seconds; where
    they are not known there is nothing. `slotmesh top` shows more of that. A controller that stands by for another one
    says which one leads, and knows nothing else: exit status 1.
    """
    form = form_of(output, as_document)
    said, load = complete(_ask(address))
    if isinstance(said, ControllerStatus):
        Printable(
            table=lambda out: print(printable_text(standby_text(said)), file=out),
            document=partial(standby_json, said),
            names=tuple,
        ).write(form)
        raise typer.Exit(FAILED)
    address = said.controller.address if said.controller is not None else address
    Printable(
        table=partial(print_tables, address, said, tracebacks=tracebacks, load=load),
        document=partial(as_json, address, said, load),
        names=partial(names_in, said),
    ).write(form)


async def _ask(address: str) -> tuple[Snapshot | ControllerStatus, MeshFigures]:
    """What there is, or that the controller stands by."""
    async with Operator.at(address) as operator:
        try:
            return await operator.snapshot(), await _load(operator)
        except NotLeader:
            standing = await operator.standing()
            if standing.leads:  # since a moment ago
                return await operator.snapshot(), await _load(operator)
            return standing, NO_FIGURES


async def _load(operator: Operator) -> MeshFigures:
    """Controllers of older versions do not say how loaded the mesh is: then nothing is known of that."""
    try:
        return figures_of(await operator.sample())
    except CommandFailed:
        return NO_FIGURES
