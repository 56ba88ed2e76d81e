"""Streams that are cut off after a value: their failures state that the call was executed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import slotmesh
from ingress_service.app import serve
from ingress_service.config import IngressSettings
from slotmesh import Executed
from tests.contract.router.yielding_replica import running, values
from tests.support.fakes.replica import hold
from tests.support.http_client import http_connection, request_bytes
from tests.support.router_bench import RouterBench, router_bench

pytestmark = pytest.mark.asyncio

JSON = "application/json"
FORMS = {"text/event-stream": b'data: "a"\n\n', "application/x-ndjson": b'"a"\n'}


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[RouterBench]:
    """A router with one replica, whose handlers yield by hand."""
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        bench.replicas[0].answer = hold
        yield bench


@pytest.mark.parametrize("by", ["stream", "unary_stream"])
async def test_a_lost_replica(bench: RouterBench, by: str) -> None:
    [replica, _] = bench.replicas
    async with slotmesh.connect(bench.address) as mesh:
        tokens = getattr(mesh.endpoint("echo").options(content_type=JSON).tokens, by)()
        [run] = await running(replica)
        await replica.say(values(run, b'"a"'))
        assert await anext(tokens) == "a"
        replica.break_link()
        with pytest.raises(slotmesh.ReplicaLost, match="broke after the handler had begun") as caught:
            await anext(tokens)
    assert caught.value.executed is Executed.YES


@pytest.mark.parametrize("by", ["stream", "unary_stream"])
async def test_a_timeout(bench: RouterBench, by: str) -> None:
    [replica, _] = bench.replicas
    async with slotmesh.connect(bench.address) as mesh:
        tokens = getattr(mesh.endpoint("echo").options(content_type=JSON, timeout=1.0).tokens, by)()
        [run] = await running(replica)
        await replica.say(values(run, b'"a"'))
        assert await anext(tokens) == "a"
        with pytest.raises(slotmesh.DeadlineExceeded) as caught:
            await anext(tokens)
    assert (caught.value.reason.value, caught.value.executed) == ("DEADLINE_RUNNING", Executed.YES)


@pytest.mark.parametrize("form", FORMS)
async def test_a_lost_replica_by_http(bench: RouterBench, form: str) -> None:
    [replica, _] = bench.replicas
    settings = IngressSettings(port=0, metrics_port=-1, routers=bench.address, controller=bench.controller.address)
    async with serve(settings) as ingress, http_connection(ingress.address) as connection:
        await connection.send(request_bytes("POST", "/echo/tokens", b"", {"accept": form}))
        [run] = await running(replica)
        await replica.say(values(run, b'"a"'))
        assert (await connection.head())[0] == 200
        chunks = connection.chunks()
        assert await anext(chunks) == FORMS[form]
        replica.break_link()
        end = await anext(chunks)
    assert end is not None
    problem = json.loads(end.split(b"data: ")[-1])
    problem = problem.get("slotmesh_problem", problem)
    assert (problem["reason"], problem["executed"]) == ("REPLICA_LOST", "yes")
