"""`slotmesh history`: what was changed of the mesh, when, and by whom."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import complete
from slotmesh.cli.output import AsJson, Output, OutputForm, Printable, form_of
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress
from slotmesh.cli.snapshot import Revision
from slotmesh.cli.subjects import REVISION
from slotmesh.cli.view.revisions import as_json, print_revisions


def history(
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="Show so many revisions, the newest.")] = 20,
    as_document: AsJson = False,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show the changes of backends and endpoints, newest first.

    Each has a revision, which `slotmesh rollback` goes back to. The controller keeps the newest 200; with `--state`
    they outlive it.
    """
    form = form_of(output, as_document)
    revisions = complete(_ask(address, most))
    Printable(
        table=partial(print_revisions, revisions),
        document=partial(as_json, revisions),
        names=lambda: (f"{REVISION}/{it.revision}" for it in revisions),
    ).write(form)


async def _ask(address: str, most: int) -> tuple[Revision, ...]:
    async with Operator.at(address) as operator:
        return await operator.revisions(most)
