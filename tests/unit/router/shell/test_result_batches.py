"""What batches say of who has executed calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from router_service.shell.clients.result_frames import name_executor
from slotmesh.streams.features import EXECUTORS
from slotmesh.v1 import call_pb2
from tests.unit.router.values_client import Client


def results_of(replica_id: str, backend: str = "b") -> Any:
    """As far as it matters."""
    return SimpleNamespace(replica=SimpleNamespace(backend=SimpleNamespace(name=backend), replica_id=replica_id))


def test_neighbours_of_one_replica_share_an_entry() -> None:
    batch = call_pb2.ResultBatch()
    for at, replica in enumerate(["r1", "r1", "r2", "r2", "r1"]):
        name_executor(batch, results_of(replica), at)
    name_executor(batch, results_of("r1", "c"), 5)
    assert list(batch.executor_starts) == [0, 2, 4, 5]
    assert list(batch.replica_ids) == ["r1", "r2", "r1", "r1"]
    assert list(batch.backends) == ["b", "b", "b", "c"]


@pytest.mark.asyncio
async def test_results_and_values_of_a_frame_say_it_once() -> None:
    client = Client(EXECUTORS)
    for call_id in range(1, 4):
        client.results((call_id, b"x"))
        client.values((10 + call_id, b"v"))
    (frame,) = client.frames()
    assert [(list(batch.executor_starts), list(batch.replica_ids)) for batch in frame.results.batches] == [
        ([0], ["r"]),
        ([0], ["r"]),
    ]
