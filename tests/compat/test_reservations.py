"""Reservations that are repeated over another router, where routers or replicas are of the previous release."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf import duration_pb2

from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import call_pb2, slot_service_pb2, slot_service_pb2_grpc
from tests.compat.load import ENDPOINT
from tests.compat.mixed_mesh import mixed_mesh
from tests.support.faults import THIS, Installation
from tests.support.tiers import long

OLD_REPLICAS: Final = frozenset({"replica-1", "replica-2"})
OLD_REPLICA: Final = frozenset({"replica-1"})
OLD_ROUTERS: Final = frozenset({"router-1", "router-2"})
OLD_ROUTER: Final = frozenset({"router-1"})


async def _slot(address: str, attempt: int, replica_id: str = "") -> slot_service_pb2.Slot:
    options = call_pb2.CallOptions(timeout=duration_pb2.Duration(seconds=10))
    request = slot_service_pb2.ReserveSlotRequest(
        endpoint=ENDPOINT, request_id="1", attempt=attempt, replica_id=replica_id, options=options
    )
    request.ttl.FromSeconds(60)
    async with open_channel(address) as channel:
        stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)
        response = await stub.ReserveSlot(request)
    return response.slot  # type: ignore[no-any-return]  # of a stub


@pytest.mark.parametrize(
    ("old", "replica_id", "is_same"),
    [
        # A replica that does not remember ids holds nothing, as far as the router knows: another slot, as before.
        long(OLD_REPLICAS, "", False),
        long(OLD_REPLICA, "replica-2", True),
        # A router of before sends no id to the replica, and reads no attempt.
        long(OLD_ROUTER, "", False),
        long(OLD_ROUTERS, "", False),
    ],
)
@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_a_repetition_gets_a_slot_whatever_is_older(
    old: frozenset[str], replica_id: str, is_same: bool, previous: Installation, tmp_path: Path
) -> None:
    def installation_of(name: str) -> Installation:
        return previous if name in old else THIS

    async with mixed_mesh(tmp_path, installation_of) as mesh:
        first = await _slot(mesh.addresses[0], 0, replica_id)
        again = await _slot(mesh.addresses[1], 1, replica_id)
        assert (again.token == first.token) is is_same
        assert (await _slot(mesh.addresses[1], 2, replica_id)).token == again.token
