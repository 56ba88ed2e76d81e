"""Restarting all replicas of a mesh, in each way that there is, while clients call it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count, cycle
from typing import Any, Final

from slotmesh.cli.operator import Operator
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.model import Mesh
from slotmesh.v1 import controller_service_pb2, controller_service_pb2_grpc
from tests.history.log import HistoryLog
from tests.history.model import Fault
from tests.support.faults import FaultyMesh

ROUNDS: Final = 3
"""How often each replica is replaced at least."""


async def restart_replicas(mesh: FaultyMesh, log: HistoryLog, replicas: int, seconds: float) -> None:
    """Replaces all replicas, `ROUNDS` times and for so long.

    By turns with signals and with orders to the controller, one replica after the other, and with a new configuration,
    all of them at once.
    """
    begin = time.monotonic()
    for number, way in zip(count(1), cycle((_terminated, _drained, _reconfigured)), strict=False):
        if number > ROUNDS and time.monotonic() >= begin + seconds:
            return
        old = await mesh.replica_pids()
        at = time.monotonic()
        async for what, without in way(mesh, old, number):
            await mesh.wait_linked(replicas, without=without)
            now = time.monotonic()
            log.add(Fault(what=what, at=at, cleared_at=now, seen="its successor is ready"))
            at = now
        assert not old.keys() & (await mesh.replica_pids()).keys(), "all of them were replaced"


Step = tuple[str, set[str]]
"""What was done, and which replicas must be gone before anything else is."""


async def _terminated(mesh: FaultyMesh, old: dict[str, int], number: int) -> AsyncIterator[Step]:
    """As an operating system does it: nobody knows before."""
    for replica_id, pid in old.items():
        os.kill(pid, signal.SIGTERM)
        yield f"SIGTERM of {replica_id}", {replica_id}


async def _drained(mesh: FaultyMesh, old: dict[str, int], number: int) -> AsyncIterator[Step]:
    """As an operator does it."""
    async with open_channel(mesh.controller.address) as channel:
        stub: Any = controller_service_pb2_grpc.ControllerServiceStub(channel)
        for replica_id in old:
            await stub.DrainReplica(controller_service_pb2.DrainReplicaRequest(replica_id=replica_id))
            yield f"drain of {replica_id}", {replica_id}


async def _reconfigured(mesh: FaultyMesh, old: dict[str, int], number: int) -> AsyncIterator[Step]:
    """As a new version does it: new ones first."""
    backend = replace(mesh.backend, user_config={"version": number})
    async with Operator.at(mesh.controller.address) as operator:
        await operator.apply(Mesh(backends=(backend,)))
    yield f"version {number} of all replicas", set(old)
