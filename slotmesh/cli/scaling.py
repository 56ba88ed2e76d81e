"""Sets how many replicas a backend should have, whatever else is changed meanwhile."""

from __future__ import annotations

from typing import Any, Final

import grpc

from slotmesh.cli.applied import Applied, FieldDifference
from slotmesh.errors import Reason
from slotmesh.spec.shown import UNSET
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb

ATTEMPTS: Final = 10
"""How often somebody else may be faster in changing the configuration."""


async def set_num_replicas(stub: Any, backend: str, replicas: int, *, dry_run: bool, **terms: Any) -> Applied:
    """Reads the backend, changes its `num_replicas` and writes it back, unless it was changed in between: then again.

    `terms` go with each rpc, as its timeout.

    Raises:
        grpc.RpcError: the controller refuses, or somebody else was faster `ATTEMPTS` times.
    """
    for remaining in reversed(range(ATTEMPTS)):
        said = await stub.GetBackend(pb.GetBackendRequest(name=backend), **terms)
        before = str(said.backend.num_replicas) if said.backend.HasField("num_replicas") else UNSET
        # As the controller sent it: settings that only a newer version knows stay as they are.
        said.backend.num_replicas = replicas
        request = pb.ApplyBackendRequest(backend=said.backend, dry_run=dry_run, expected_revision=said.revision)
        try:
            response = await stub.ApplyBackend(request, **terms)
        except grpc.RpcError as error:
            if remaining and from_rpc_error(error).reason is Reason.REVISION_CONFLICT:
                continue
            raise
        return _applied(response.revision, backend, before, str(replicas))
    raise AssertionError("the last attempt returns or raises")


def _applied(revision: int, backend: str, before: str, after: str) -> Applied:
    subject, is_changed = f"backend/{backend}", before != after
    return Applied(
        revision=revision,
        created=(),
        updated=(subject,) if is_changed else (),
        unchanged=() if is_changed else (subject,),
        deleted=(),
        fields=(FieldDifference(subject=subject, field="num_replicas", before=before, after=after),),
    )
