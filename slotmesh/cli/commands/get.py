"""`slotmesh get`: backends, endpoints and routes as they are, as a file that `slotmesh apply` takes."""

from __future__ import annotations

from typing import Annotated

import typer

from slotmesh.cli.console import Output, OutputForm, say
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, configured_subject, unknown
from slotmesh.cli.view.changes import deferred_line, printable_mesh, subjects_of
from slotmesh.spec.model import Mesh
from slotmesh.spec.routes import route_subject


async def get(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            parser=configured_subject,
            metavar="SUBJECT",
            help="`backend/NAME`, `endpoint/NAME` or `route/PATH`. None: all that there is.",
        ),
    ] = None,
    output: Output = OutputForm.YAML,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Print backends, endpoints and routes as they are.

    As YAML it is a file that `slotmesh apply` takes: with what is in force now, including changes of other clients.
    Settings that have their defaults are left out. Starts of replicas that wait are reported on stderr.

    Like this:

        slotmesh get > mesh.yaml
        slotmesh get endpoint/digits -o json
    """
    async with Operator.at(address) as operator:
        _, mesh, deferred = await operator.configured()
    if subjects:
        known = subjects_of(mesh)
        if missing := [it for it in subjects if it not in known]:
            raise unknown(missing[0], known)
        mesh = Mesh(
            backends=tuple(it for it in mesh.backends if f"backend/{it.name}" in subjects),
            endpoints=tuple(it for it in mesh.endpoints if f"endpoint/{it.name}" in subjects),
            routes=tuple(it for it in mesh.routes if route_subject(it.path) in subjects),
        )
    for it in mesh.backends:
        if why := deferred.get(it.name):
            say(deferred_line(it.name, why), err=True)
    printable_mesh(mesh).write(output)
