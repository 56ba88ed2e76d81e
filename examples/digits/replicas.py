"""How many calls each replica executed, as the replicas count themselves: read from their Prometheus endpoints."""

from __future__ import annotations

import asyncio
from http.client import HTTPConnection

from prometheus_client.parser import text_string_to_metric_families

from slotmesh.runtime.channels import open_channel
from slotmesh.telemetry.names import REPLICA_CALLS
from slotmesh.units import parse_host_port
from slotmesh.v1 import controller_service_pb2, controller_service_pb2_grpc

_TIMEOUT_S = 5.0
_FAMILY = REPLICA_CALLS.name.replace(".", "_")


async def calls_executed(controller: str) -> dict[str, int]:
    """Calls executed since its start, by replica id, of every replica that has a metrics endpoint."""
    async with open_channel(controller) as channel:
        stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
        listed = await stub.ListReplicas(controller_service_pb2.ListReplicasRequest(), timeout=_TIMEOUT_S)
    replicas = [replica for replica in listed.replicas if replica.metrics_address]
    pages = await asyncio.gather(*(asyncio.to_thread(_read, replica.metrics_address) for replica in replicas))
    return {replica.replica_id: _calls(page) for replica, page in zip(replicas, pages, strict=True)}


def _read(metrics_address: str) -> str:
    host, port = parse_host_port(metrics_address)
    connection = HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _calls(page: str) -> int:
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(page)
        if family.name.startswith(_FAMILY)
        for sample in family.samples
        if sample.name.endswith("_total")
    )
