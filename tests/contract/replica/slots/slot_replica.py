"""What tests ask of a replica that leases slots."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from replica_service.core.slot_table import SlotTable
from slotmesh.errors import Executed
from tests.contract.slot_handlers import Handler
from tests.support.replicas import RunningReplica
from tests.support.slot_doors import Failed
from tests.support.wait import wait_until

HANDLER = "tests.contract.slot_handlers:Handler"
START = 1_000.0


def handler_of(replica: RunningReplica) -> Handler:
    handler = replica.handler
    assert isinstance(handler, Handler)
    return handler


def table_of(replica: RunningReplica) -> SlotTable:
    return replica.engine.scheduler.slots


async def all_free(replica: RunningReplica) -> None:
    await wait_until(lambda: replica.engine.scheduler.is_idle, what="all permits free")
    assert table_of(replica).reserved == 0


async def told_by(operation: Awaitable[object]) -> tuple[str, Executed]:
    with pytest.raises(Failed) as caught:
        await operation
    return caught.value.told
