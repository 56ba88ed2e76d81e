"""`slotmesh scale`: how many replicas a backend should have."""

from __future__ import annotations

from typing import Annotated

import typer
from google.protobuf.field_mask_pb2 import FieldMask

from slotmesh.cli.console import Output, OutputForm, say
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import BACKEND, CONTROLLER, BackendName, ControllerAddress, DryRun, unknown
from slotmesh.cli.view.changes import difference, print_change
from slotmesh.cli.waiting import DEFAULT_PATIENCE, Patience, WaitForReady, patience_of, wait_for_backends
from slotmesh.errors import BackendNotFound
from slotmesh.spec.model import MAX_REPLICAS
from slotmesh.spec.writing import UNSET
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2


async def scale(
    backend: BackendName,
    replicas: Annotated[
        int, typer.Argument(metavar="N", min=0, max=MAX_REPLICAS, help="How many replicas it should have.")
    ],
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
            applied = await set_num_replicas(operator, backend, replicas, dry_run=dry_run)
        except BackendNotFound as error:
            known = [f"{BACKEND}/{it.name}" for it in (await operator.configuration()).backends]
            raise unknown(f"{BACKEND}/{backend}", known) from error
        for line in difference(applied):
            say(line, err=True)
        print_change(applied, output, is_planned=dry_run)
        if replicas == 0:
            await _warn_of_endpoints(operator, backend)
        if patience is not None:
            await wait_for_backends(operator, applied, {backend}, patience, done="scaled")


async def _warn_of_endpoints(operator: Operator, backend: str) -> None:
    """A backend without replicas is as it should be, but calls that endpoints lead there fail."""
    for it in (await operator.configuration()).endpoints:
        if it.traffic is not None and it.traffic.weights.get(backend):
            text = f"{it.name} leads to {backend}, which should have no replica: these calls fail"
            say(f"slotmesh: warning: endpoint/{text}; `slotmesh traffic {it.name}` changes where it leads", err=True)


async def set_num_replicas(operator: Operator, backend: str, replicas: int, *, dry_run: bool) -> pb.ApplyMeshResponse:
    """Sets the number of replicas, whatever else of the backend is changed meanwhile. Raises SlotmeshError."""
    read = await operator.backend(backend)
    before = str(read.num_replicas) if read.HasField("num_replicas") else UNSET
    request = pb.ApplyBackendRequest(
        backend=mesh_pb2.Backend(name=backend, num_replicas=replicas),
        update_mask=FieldMask(paths=["num_replicas"]),
        validate_only=dry_run,
    )
    response: pb.ApplyBackendResponse = await operator.send(request)
    subject, applied = f"{BACKEND}/{backend}", pb.ApplyMeshResponse(revision=response.revision)
    (applied.unchanged if response.change == pb.CHANGE_UNCHANGED else applied.updated).append(subject)
    applied.fields.add(resource=subject, field="num_replicas", before=before, after=str(replicas))
    return applied
