"""How commands ask: each rpc is found by its request; looks are taken until there is no more time."""

from __future__ import annotations

import pytest

from slotmesh.cli.console import looks
from slotmesh.cli.operator import RPCS
from slotmesh.v1 import controller_service_pb2


def test_each_rpc_of_controllers_has_a_request_of_its_own() -> None:
    methods = controller_service_pb2.DESCRIPTOR.services_by_name["ControllerService"].methods
    assert sorted(it.full_name for it in RPCS.values()) == sorted(it.full_name for it in methods)


def test_what_changes_nothing_is_a_query_and_may_be_repeated() -> None:
    changes = {it.name for it in RPCS.values() if "request_id" in it.input_type.fields_by_name}
    queries = {it.name for it in RPCS.values()} - changes
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
