"""A caller of a router's SlotService, and what tests of slots ask of the router behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from slotmesh.errors import Failure
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import (
    router_service_pb2,
    slot_service_pb2,
    slot_service_pb2_grpc,
)
from tests.support.fakes.replica import FakeReplica
from tests.support.router_bench import RouterBench
from tests.support.wait import wait_until
from tests.support.wire_options import wire_options

Slot = slot_service_pb2.Slot
SECOND = duration_pb2.Duration(seconds=1)
SHORT = duration_pb2.Duration(nanos=50_000_000)


class SlotCaller:
    """Calls a SlotService by its stub."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)

    def reserve(self, endpoint: str = "echo", *, options: Any = None, **fields: Any) -> Any:
        return self.stub.ReserveSlot(slot_service_pb2.ReserveSlotRequest(endpoint=endpoint, options=options, **fields))

    async def slot(self, **fields: Any) -> Slot:
        response = await self.reserve(**fields)
        return response.slot  # type: ignore[no-any-return]  # stubs of grpc.aio know no types

    def dispatch(
        self, slot: Slot | str, payload: bytes = b"x", *, endpoint: str = "", request_id: str = "", **options: Any
    ) -> Any:
        return self.stub.Dispatch(
            slot_service_pb2.DispatchRequest(
                token=slot if isinstance(slot, str) else slot.token,
                payload=payload,
                endpoint=endpoint,
                options=wire_options(**options),
                request_id=request_id,
            )
        )

    def stream(self, slot: Slot, payload: bytes = b"x", **options: Any) -> Any:
        return self.stub.DispatchStreaming(
            slot_service_pb2.DispatchStreamingRequest(
                token=slot.token, payload=payload, options=wire_options(**options)
            )
        )

    def renew(self, slot: Slot | str, ttl: duration_pb2.Duration | None = None) -> Any:
        token = slot if isinstance(slot, str) else slot.token
        return self.stub.RenewSlot(slot_service_pb2.RenewSlotRequest(token=token, ttl=ttl))

    def release(self, slot: Slot | str) -> Any:
        token = slot if isinstance(slot, str) else slot.token
        return self.stub.ReleaseSlot(slot_service_pb2.ReleaseSlotRequest(token=token))


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[SlotCaller]:
    async with open_channel(address) as channel:
        yield SlotCaller(channel)


async def failure_of(call: Any) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def one_replica(mesh: RouterBench, slots: int = 8, **fields: Any) -> FakeReplica:
    replica = mesh.replicas[0]
    await mesh.with_slots(slots, replica, **fields)
    return replica


def call(payload: bytes = b"x", **options: Any) -> router_service_pb2.CallRequest:
    return router_service_pb2.CallRequest(endpoint="echo", payload=payload, options=wire_options(**options))


async def queued(mesh: RouterBench, count: int) -> None:
    await wait_until(
        lambda: any(load.queued == count for load in mesh.controller.reports[-1].loads), what=f"{count} are queued"
    )
