"""`slotmesh delete`: backends, endpoints and routes that should be there no more."""

from __future__ import annotations

from typing import Annotated

import typer

from slotmesh.cli.console import CommandFailed, Output, OutputForm, confirm, say
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import (
    BACKEND,
    CONTROLLER,
    ENDPOINT,
    ControllerAddress,
    DryRun,
    Yes,
    configured_subject,
    unknown,
)
from slotmesh.cli.view.changes import difference, print_change, subjects_of
from slotmesh.errors import SlotmeshError
from slotmesh.spec.model import Mesh
from slotmesh.v1 import controller_service_pb2 as pb


async def delete(
    subjects: Annotated[
        list[str],
        typer.Argument(
            parser=configured_subject,
            metavar="SUBJECT",
            help="`backend/NAME`, `endpoint/NAME` or `route/PATH`; more than one, too.",
        ),
    ],
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Delete backends, endpoints and routes.

    Endpoints go first. What waits for an endpoint that is deleted fails with ENDPOINT_NOT_FOUND; the replicas of a
    backend drain. A backend that an endpoint's traffic or shadows name is not deleted, unless that endpoint is. Where
    one of them is not there or is in use, nothing is deleted. All is one change, which `slotmesh rollback` undoes.

    Like this:

        slotmesh delete endpoint/digits backend/digits-v1
        slotmesh delete $(slotmesh get -o name) --dry-run
    """
    subjects = list(dict.fromkeys(subjects))
    async with Operator.at(address) as operator:
        revision, mesh, _ = await operator.configured()
        _check(subjects, mesh)
        # An endpoint before the backends that its traffic names.
        in_order = sorted(subjects, key=lambda it: it.startswith(f"{BACKEND}/"))
        planned = pb.ApplyMeshResponse(revision=revision, deleted=in_order)
        for line in difference(planned):
            say(line, err=True)
        if dry_run:
            print_change(planned, output, is_planned=True)
            return
        confirm("delete this?", yes=yes)
        together = await operator.delete_all(in_order)
        planned.revision = await _one_by_one(operator, in_order, revision) if together is None else together
    print_change(planned, output)


async def _one_by_one(operator: Operator, subjects: list[str], revision: int) -> int:
    """At an older controller. Returns the revision after that; `revision` is the one before."""
    after = revision
    undo = f"to undo all of it: `slotmesh rollback {revision}`"
    for number, subject in enumerate(subjects):
        try:
            after = await operator.delete(subject)
        except SlotmeshError as error:
            before = ", ".join(subjects[:number])
            done = f"deleted before: {before}; {undo}" if before else "deleted before: nothing"
            raise CommandFailed(f"{error}\n{subject} was not deleted; {done}") from error
    if len(subjects) > 1:
        say(f"slotmesh: this controller made a change of each; {undo}", err=True)
    return after


def _check(subjects: list[str], mesh: Mesh) -> None:
    """Raises CommandFailed where one of them is not there, or is a backend in use by what stays."""
    known = subjects_of(mesh)
    for subject in subjects:
        if subject not in known:
            raise unknown(subject, known)
    for endpoint in mesh.endpoints:
        if endpoint.traffic is None or (user := f"{ENDPOINT}/{endpoint.name}") in subjects:
            continue
        for name in (*endpoint.traffic.weights, *endpoint.traffic.shadows):
            if (subject := f"{BACKEND}/{name}") in subjects:
                raise CommandFailed(
                    f"{subject} is in use by {user}, nothing was deleted: take it out with `slotmesh traffic"
                    f" {endpoint.name} BACKEND=WEIGHT`, or delete {user} as well"
                )
