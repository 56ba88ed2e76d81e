"""SlotService where two-step routing is not offered: each rpc says so."""

from __future__ import annotations

from typing import Any

import grpc

from slotmesh.errors import Failure, Reason
from slotmesh.status import abort
from slotmesh.v1 import slot_service_pb2_grpc
from slotmesh.version import VERSION

Context = grpc.aio.ServicerContext[Any, Any]


class SlotsNotHere(slot_service_pb2_grpc.SlotServiceServicer):
    """Answers NOT_IMPLEMENTED."""

    async def _refuse(self, request: Any, context: Context) -> Any:  # noqa: ARG002  # gRPC's signature
        await abort(
            context,
            Failure(reason=Reason.NOT_IMPLEMENTED, message=f"leased slots are not known to slotmesh {VERSION}"),
        )

    ReserveSlot = RenewSlot = ReleaseSlot = Dispatch = _refuse
    DispatchStreaming = _refuse  # type: ignore[assignment]  # it aborts before it would yield
