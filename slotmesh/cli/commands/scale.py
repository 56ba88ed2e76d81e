"""`slotmesh scale`: how many replicas a backend should have."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from slotmesh.cli.console import Output, OutputForm, say
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import BACKEND, CONTROLLER, BackendName, ControllerAddress, DryRun, unknown
from slotmesh.cli.view.changes import difference, print_change
from slotmesh.cli.waiting import (
    DEFAULT_PATIENCE,
    Patience,
    WaitForReady,
    after_change,
    ends_of_rollouts,
    patience_of,
    wait_until_ready,
)
from slotmesh.errors import BackendNotFound, Reason, SlotmeshError
from slotmesh.spec.writing import UNSET
from slotmesh.v1 import controller_service_pb2 as pb

ATTEMPTS: Final = 10
"""The number of attempts while other clients change the configuration in between."""


async def scale(
    backend: BackendName,
    replicas: Annotated[int, typer.Argument(metavar="N", min=0, help="How many replicas it should have.")],
    *,
    dry_run: DryRun = False,
    wait: WaitForReady = None,
    timeout: Patience = DEFAULT_PATIENCE,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Set how many replicas a backend should have.

    Only `num_replicas` is changed, whatever else is changed meanwhile. A file that was applied before and is applied
    again leaves it so, unless its own `num_replicas` has changed. Replicas that are too many drain. Where others start
    the replicas (`--launcher external`), the number is what `slotmesh status` shows beside those that are there.

    Like this:

        slotmesh scale digits-v1 4
        slotmesh scale backend/digits-v1 0 --dry-run
    """
    patience = None if dry_run else patience_of(wait, timeout)
    async with Operator.at(address) as operator:
        try:
            ended = await ends_of_rollouts(operator) if patience is not None else {}
            applied = await set_num_replicas(operator, backend, replicas, dry_run=dry_run)
        except BackendNotFound as error:
            known = [f"{BACKEND}/{it.name}" for it in (await operator.configuration()).backends]
            raise unknown(f"{BACKEND}/{backend}", known) from error
        for line in difference(applied):
            say(line, err=True)
        print_change(applied, output, is_planned=dry_run)
        if patience is not None:
            with after_change(operator, f"scaled, revision {applied.revision}", "slotmesh status", patience):
                await wait_until_ready(operator, {backend}, applied.revision, patience, done="scaled", ended=ended)


async def set_num_replicas(operator: Operator, backend: str, replicas: int, *, dry_run: bool) -> pb.ApplyMeshResponse:
    """Sets the number of replicas, whatever else of the backend is changed meanwhile.

    Reads the backend and writes it back with the new `num_replicas`; if its revision has changed in between, does so
    again.

    Raises:
        SlotmeshError: the controller refuses, or the revision has changed in each of `ATTEMPTS` attempts.
    """
    for remaining in reversed(range(ATTEMPTS)):
        read = await operator.send(pb.GetBackendRequest(name=backend))
        before = str(read.backend.num_replicas) if read.backend.HasField("num_replicas") else UNSET
        # As the controller sent it: settings that only a newer version knows stay as they are.
        read.backend.num_replicas = replicas
        request = pb.ApplyBackendRequest(backend=read.backend, validate_only=dry_run, expected_revision=read.revision)
        try:
            response = await operator.send(request)
        except SlotmeshError as error:
            if remaining and error.reason is Reason.REVISION_CONFLICT:
                continue
            raise
        subject, is_changed = f"backend/{backend}", before != str(replicas)
        applied = pb.ApplyMeshResponse(revision=response.revision)
        (applied.updated if is_changed else applied.unchanged).append(subject)
        applied.fields.add(resource=subject, field="num_replicas", before=before, after=str(replicas))
        return applied
    raise AssertionError("the last attempt returns or raises")
