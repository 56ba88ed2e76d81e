"""How commands ask: each rpc is found by its request; looks are taken until there is no more time."""

from __future__ import annotations

import pytest

from slotmesh.cli.connection import RPCS
from slotmesh.cli.console import looks
from slotmesh.v1 import controller_service_pb2, info_service_pb2, router_service_pb2, tap_service_pb2

OF_CONTROLLERS = controller_service_pb2.DESCRIPTOR.services_by_name["ControllerService"].methods


def test_each_rpc_has_a_request_of_its_own() -> None:
    files = (controller_service_pb2, info_service_pb2, router_service_pb2, tap_service_pb2)
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    methods = [method.full_name for service in services for method in service.methods]
    assert sorted(it.full_name for it in RPCS.values()) == sorted(methods)


def test_what_changes_nothing_is_a_query_and_may_be_repeated() -> None:
    changes = {it.name for it in OF_CONTROLLERS if "request_id" in it.input_type.fields_by_name}
    queries = {it.name for it in OF_CONTROLLERS} - changes
    assert all(name.startswith(("Get", "List", "Describe", "Watch", "Wait", "Read")) for name in queries)


@pytest.mark.asyncio
async def test_without_time_there_is_one_look_and_without_a_limit_there_is_always_another() -> None:
    assert await anext(looks(3_600.0, 0.0)) is True, "the first is taken immediately"
    assert await anext(looks(3_600.0, 3_600.0)) is False
    unlimited = looks(0.0, None)
    assert [await anext(unlimited) for _ in range(3)] == [False, False, False]
    bounded = looks(0.0, 0.001)
    async for is_over in bounded:
        if is_over:
            break
