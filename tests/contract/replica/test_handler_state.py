"""What a handler reports of itself, from a real replica to its routers."""

from __future__ import annotations

import asyncio
import threading

import pytest

import slotmesh
from slotmesh.handlers import deployment
from slotmesh.internal.v1 import replica_service_pb2
from tests.support.execute_stream import ExecuteStream
from tests.support.metrics import scraped
from tests.support.replicas import running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Reporting:
    """Reports the number that it gets, in each place that a handler has."""

    def __init__(self) -> None:
        slotmesh.report(constructed=1)

    async def on_loop(self, number: bytes) -> bytes:
        slotmesh.report(on_loop=int(number))
        return number

    def in_thread(self, number: bytes) -> bytes:
        slotmesh.report(in_thread=int(number))
        return number

    async def often(self, number: bytes) -> bytes:
        for each in range(int(number)):
            slotmesh.report(each=each)
            await asyncio.sleep(0)
        return number


@deployment(own_loop=True)
class OwnLoop(Reporting):
    pass


def newest(stream: ExecuteStream) -> dict[str, float]:
    return dict(stream.handler_states[-1].figures) if stream.handler_states else {}


@pytest.mark.parametrize("handler", ["Reporting", "OwnLoop"])
async def test_reports_of_all_places_reach_each_router(handler: str) -> None:
    name = f"tests.contract.replica.test_handler_state:{handler}"
    async with running_replica(name) as replica, replica.router() as stream:
        await wait_until(lambda: newest(stream) == {"constructed": 1.0}, what="what the constructor reports")
        await stream.send(stream.run([b"1"], method="on_loop"), stream.run([b"2"], method="in_thread"))
        every = {"constructed": 1.0, "on_loop": 1.0, "in_thread": 2.0}
        await wait_until(lambda: newest(stream) == every, what="reports of methods")
        async with replica.router("router-2") as other:
            await wait_until(lambda: newest(other) == every, what="a link that opens gets the state")
            assert len(other.handler_states) == 1


async def test_a_thread_without_context_reports_to_the_process_s_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_replica("tests.contract.replica.test_handler_state:Reporting") as replica:
        monkeypatch.setattr("slotmesh.handlers.reporting.of_process.state", replica.app.replica.handler_state)
        async with replica.router() as stream:
            thread = threading.Thread(target=slotmesh.report, kwargs={"alone": 3})
            thread.start()
            thread.join(timeout=10)
            await wait_until(lambda: newest(stream).get("alone") == 3.0, what="the report of the thread")


async def test_many_reports_are_few_frames() -> None:
    async with running_replica("tests.contract.replica.test_handler_state:Reporting") as replica:
        async with replica.router() as stream:
            await stream.send(stream.run([b"2000"], method="often"))
            began = asyncio.get_running_loop().time()
            await wait_until(lambda: newest(stream).get("each") == 1999.0, what="the newest report")
            took = asyncio.get_running_loop().time() - began
            assert len(stream.handler_states) <= 3 + took / 0.05


async def test_models_are_sent_only_when_they_have_changed() -> None:
    async with running_replica("tests.contract.replica.test_handler_state:Reporting") as replica:
        state = replica.app.replica.handler_state
        async with replica.router() as stream:
            state.loaded(["m2", "m1"])
            await wait_until(lambda: any(it.models for it in stream.handler_states), what="models")
            state.report({"a": 1})
            await wait_until(lambda: newest(stream).get("a") == 1.0, what="figures")
            frame: replica_service_pb2.HandlerState = stream.handler_states[-1]
            assert (list(frame.models), frame.same_models) == ([], True)
            state.loaded([])
            await wait_until(lambda: not stream.handler_states[-1].same_models, what="no models")
            assert list(stream.handler_states[-1].models) == []


async def test_evicted_blocks_reach_routers_that_were_linked_then() -> None:
    async with running_replica("tests.contract.replica.test_handler_state:Reporting") as replica:
        state = replica.app.replica.handler_state
        async with replica.router() as stream:
            await wait_until(lambda: bool(stream.handler_states), what="the first state")
            state.evicted([1, 2**64 - 1])
            await wait_until(lambda: bool(stream.handler_states[-1].evicted_blocks), what="evicted blocks")
            frame: replica_service_pb2.HandlerState = stream.handler_states[-1]
            assert (list(frame.evicted_blocks), frame.all_evicted) == ([1, 2**64 - 1], False)
            state.all_evicted()
            await wait_until(lambda: stream.handler_states[-1].all_evicted, what="all blocks")
            assert not stream.handler_states[-1].evicted_blocks
            async with replica.router("router-2") as other:
                state.report({"a": 1})
                await wait_until(lambda: newest(other).get("a") == 1.0, what="figures")
                assert not any(each.all_evicted or each.evicted_blocks for each in other.handler_states)


class Multiplexed:
    @slotmesh.multiplexed(max_models=3)
    async def load(self, model_id: str) -> str:
        if model_id == "bad":
            raise LookupError(model_id)
        return model_id

    async def use(self, model_id: bytes) -> str:
        return await self.load(model_id.decode())


async def test_loaded_models_reach_routers_the_controller_and_metrics() -> None:
    async with running_replica("tests.contract.replica.test_handler_state:Multiplexed", metrics_port=0) as replica:
        async with replica.router() as stream:
            for number, model in enumerate([b"a", b"b", b"bad", b"a", b"c", b"d"], 1):
                await stream.send(stream.run([model], method="use"))
                await stream.wait_answers(number)
            await wait_until(
                lambda: stream.handler_states and set(stream.handler_states[-1].models) == {"a", "c", "d"},
                what="the loaded models",
            )
            assert stream.handler_states[-1].max_models == 3
            models = replica.app.replica.report().models
            assert (models.count, models.most, models.ids[0]) == (3, 3, "d")
            page = await scraped(replica.app.replica.metrics_address)
    assert page.total("slotmesh_replica_model_loads_total", outcome="ok") == 4
    assert page.total("slotmesh_replica_model_loads_total", outcome="failed") == 1
    assert page.total("slotmesh_replica_model_hits_total") == 1
    assert page.total("slotmesh_replica_model_unloads_total") == 1
    assert page.total("slotmesh_replica_models") == 3
