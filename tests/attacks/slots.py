"""Slots as an attacker uses them: operations by the token, and what each was answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc
from google.protobuf import duration_pb2

from slotmesh.status import from_rpc_error
from slotmesh.v1 import call_pb2, slot_service_pb2, slot_service_pb2_grpc

OK: Final = "OK"
ENDPOINT: Final = "Attacked"
_PATIENCE_S: Final = 30.0


class SlotCaller:
    """A client of SlotService."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)
        self.operations: Mapping[str, Callable[[str], Awaitable[str]]] = {
            "dispatch": self.dispatch,
            "renew": self.renew,
            "release": self.release,
        }

    async def reserve(self, ttl_s: float) -> slot_service_pb2.Slot:
        request = slot_service_pb2.ReserveSlotRequest(
            endpoint=ENDPOINT,
            ttl=duration_pb2.Duration(seconds=int(ttl_s), nanos=int(ttl_s % 1 * 1e9)),
            options=call_pb2.CallOptions(timeout=duration_pb2.Duration(seconds=int(_PATIENCE_S))),
        )
        response = await self._stub.ReserveSlot(request, timeout=_PATIENCE_S)
        return response.slot  # type: ignore[no-any-return]  # stubs of grpc.aio know no types

    async def dispatch(self, token: str, endpoint: str = "", text: str = "attack") -> str:
        """Would run `note` with this text. Returns the reason of the failure, or OK."""
        options = call_pb2.CallOptions(method="note")
        request = slot_service_pb2.DispatchRequest(
            token=token, options=options, payload=text.encode(), endpoint=endpoint
        )
        return await _answer_of(self._stub.Dispatch(request, timeout=_PATIENCE_S))

    async def renew(self, token: str) -> str:
        return await _answer_of(
            self._stub.RenewSlot(slot_service_pb2.RenewSlotRequest(token=token), timeout=_PATIENCE_S)
        )

    async def release(self, token: str) -> str:
        request = slot_service_pb2.ReleaseSlotRequest(token=token)
        return await _answer_of(self._stub.ReleaseSlot(request, timeout=_PATIENCE_S))


async def _answer_of(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error).reason.value
    return OK
