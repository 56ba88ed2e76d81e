"""`slotmesh.testing.mesh` and `sync_mesh`: everything in this process, over real gRPC."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from typing import Any

import grpc
import pytest

import slotmesh
import slotmesh.testing
from slotmesh.spec.model import InvalidSpec
from slotmesh.testing import Backend
from slotmesh.v1.controller_service_pb2 import PauseRolloutRequest
from slotmesh.v1.controller_service_pb2_grpc import ControllerServiceStub
from tests.support.wait import wait_until, within


class Digits:
    def __init__(self, model: str = "nearest") -> None:
        self.model = model
        self.seen: list[int] = []

    async def which(self) -> str:
        return self.model

    async def note(self, number: int) -> int:
        self.seen.append(number)
        return number


@pytest.mark.asyncio
async def test_the_client_is_the_real_one_and_handlers_are_objects_of_the_test() -> None:
    started, leave = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        started.set()
        await leave.wait()
        return "done"

    async with slotmesh.testing.mesh({"wait": wait, "digits": Digits}) as mesh:
        assert isinstance(mesh, slotmesh.Mesh)
        call = mesh.endpoint("wait")()
        await within(started.wait(), "a call that has started")
        leave.set()
        assert await call == "done"
        assert await mesh.endpoint("digits").which() == "nearest"
        async with mesh.endpoint("digits").reserve() as slot:
            assert slot.replica_id == mesh.replica_ids("digits")[0]
            assert await slot.which() == "nearest"
        assert mesh.instances("wait") == [wait]


@pytest.mark.asyncio
async def test_replicas_share_the_calls_and_one_of_them_has_a_key() -> None:
    async with slotmesh.testing.mesh({"digits": Backend(Digits, num_replicas=3)}, routers=2) as mesh:
        digits = mesh.endpoint("digits")
        async with digits.ordered("one") as lane:
            for number in range(50):
                lane.note(number)
        seen = [instance.seen for instance in mesh.instances("digits")]
        assert len(seen) == 3
        assert sorted(map(len, seen)) == [0, 0, 50]
        assert max(seen, key=len) == list(range(50))
        assert len(mesh.router_addresses) == 2
        async with slotmesh.connect(mesh.router_addresses[1]) as other:
            assert await other.endpoint("digits").which() == "nearest"


@pytest.mark.asyncio
async def test_traffic_is_divided_and_changed() -> None:
    versions = {name: Backend(Digits, {"model": name}) for name in ("v1", "v2")}
    async with slotmesh.testing.mesh(versions, traffic={"digits": {"v1": 1.0, "v2": 0.0}}) as mesh:
        digits = mesh.endpoint("digits")
        assert set(await asyncio.gather(*(digits.which() for _ in range(20)))) == {"v1"}
        await mesh.apply(traffic={"digits": {"v1": 0.0, "v2": 1.0}})
        assert set(await asyncio.gather(*(digits.which() for _ in range(20)))) == {"v2"}


@pytest.mark.asyncio
async def test_a_slot_that_is_free_is_reserved_with_a_timeout_of_0() -> None:
    async def wait() -> None: ...

    async with slotmesh.testing.mesh({"wait": Backend(wait, max_ongoing=1)}) as mesh:
        endpoint = mesh.endpoint("wait")
        async with endpoint.reserve(timeout=0) as slot:
            with pytest.raises(slotmesh.NoSlot, match="in 0 s"):
                async with endpoint.reserve(timeout=0):
                    raise AssertionError
            await slot()
        async with mesh.reserve_all("wait", timeout=0):
            pass
        with pytest.raises(slotmesh.DeadlineInQueue):
            await endpoint.options(timeout=0)()


@pytest.mark.asyncio
async def test_a_replica_that_is_killed_loses_what_ran_there_and_is_replaced() -> None:
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    async with slotmesh.testing.mesh({"wait": wait}) as mesh:
        call = mesh.endpoint("wait")()
        await within(started.wait(), "a call that has started")
        (first,) = mesh.replica_ids("wait")
        await mesh.kill_replica(first)
        with pytest.raises(slotmesh.ReplicaLost) as lost:
            await call
        assert lost.value.executed is slotmesh.Executed.UNKNOWN
        await mesh.wait_ready()
        assert mesh.replica_ids("wait") != [first]
        with pytest.raises(KeyError, match=mesh.replica_ids("wait")[0]):
            await mesh.kill_replica(first)


@pytest.mark.asyncio
async def test_a_replica_that_drains_finishes_what_runs() -> None:
    started, leave = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        started.set()
        await leave.wait()
        return "done"

    async with slotmesh.testing.mesh({"wait": wait}) as mesh:
        call = mesh.endpoint("wait")()
        await within(started.wait(), "a call that has started")
        draining = asyncio.create_task(mesh.drain_replica(mesh.replica_ids("wait")[0]))
        await wait_until(lambda: mesh.replica_ids("wait") != [] or draining.done(), what="another one")
        leave.set()
        assert await call == "done"
        await draining
        await mesh.wait_ready()
        assert await mesh.endpoint("wait")() == "done"


@pytest.mark.asyncio
async def test_a_router_that_is_killed_is_followed_by_the_other_one() -> None:
    async with slotmesh.testing.mesh({"digits": Digits}, routers=2) as mesh:
        digits = mesh.endpoint("digits")
        assert await digits.which() == "nearest"
        await mesh.kill_router(mesh.router_addresses[0])
        assert await digits.which() == "nearest"
        with pytest.raises(KeyError, match=mesh.router_addresses[0]):
            await mesh.kill_router("127.0.0.1:1")


@pytest.mark.asyncio
async def test_another_class_of_the_same_name_is_another_handler() -> None:
    def make(answer: int) -> type:
        class Answer:
            async def ask(self) -> int:
                return answer

        return Answer

    async with slotmesh.testing.mesh({"a": make(1)}) as mesh:
        assert await mesh.endpoint("a").ask() == 1
        await mesh.apply({"a": make(2)})
        assert await mesh.endpoint("a").ask() == 2


@pytest.mark.asyncio
async def test_what_a_constructor_raises_ends_the_start() -> None:
    class Dead:
        def __init__(self) -> None:
            raise LookupError("no model")

        def call(self) -> None: ...

    before = asyncio.all_tasks()
    with pytest.raises(LookupError, match="no model"):
        async with slotmesh.testing.mesh({"digits": Digits, "dead": Dead}):
            pytest.fail("it was entered")
    assert asyncio.all_tasks() == before


@pytest.mark.asyncio
async def test_a_mesh_that_is_not_ready_in_time_says_what_it_lacks() -> None:
    go_on = threading.Event()

    class Late:
        def __init__(self) -> None:
            go_on.wait(30)

        def call(self) -> None: ...

    with pytest.raises(TimeoutError, match=r"after 0\.1 s: 0 of 1 replicas of late take calls"):
        async with slotmesh.testing.mesh({"late": Late}, start_timeout=0.1):
            pytest.fail("it was entered")
    go_on.set()


@pytest.mark.asyncio
async def test_mistakes_are_told_as_those_of_a_specification() -> None:
    with pytest.raises(InvalidSpec, match=r"weights sum to 0\.5"):
        async with slotmesh.testing.mesh({"digits": Digits}, traffic={"digits": {"digits": 0.5}}):
            pytest.fail("it was entered")
    with pytest.raises(TypeError, match="max_queued_cals"):
        async with slotmesh.testing.mesh({"digits": Backend(Digits, settings={"max_queued_cals": 1})}):
            pytest.fail("it was entered")
    with pytest.raises(ValueError, match="routers=0"):
        async with slotmesh.testing.mesh({"digits": Digits}, routers=0):
            pytest.fail("it was entered")
    with pytest.raises(TypeError, match="max_batch_size is called max_wire_batch_size now"):
        async with slotmesh.testing.mesh({"digits": Backend(Digits, settings={"max_batch_size": 1})}):
            pass


@pytest.mark.asyncio
async def test_nothing_is_left_behind() -> None:
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    async with slotmesh.testing.mesh({"digits": Backend(Digits, num_replicas=2)}, routers=2) as mesh:
        assert await mesh.endpoint("digits").which() == "nearest"
    await wait_until(
        lambda: asyncio.all_tasks() == tasks, what="the end of tasks, those of gRPC's closed calls included"
    )
    left = set(threading.enumerate()) - threads
    assert not [thread for thread in left if thread.name.startswith(("slotmesh", "mesh"))]


@pytest.mark.asyncio
async def test_a_mesh_whose_replicas_run_earlier_settings_is_not_ready() -> None:
    old, new = Backend(Digits, {"model": "old"}), Backend(Digits, {"model": "new"})
    async with (
        slotmesh.testing.mesh({"digits": old}) as mesh,
        grpc.aio.insecure_channel(mesh.controller_address) as channel,
    ):
        stub: Any = ControllerServiceStub(channel)
        await stub.PauseRollout(PauseRolloutRequest(backend="digits"))
        with pytest.raises(TimeoutError, match=r"digits-.* of digits run earlier settings"):
            await mesh.apply({"digits": new}, timeout=1.0)
        await stub.PauseRollout(PauseRolloutRequest(backend="digits", resume=True))
        await mesh.wait_ready()
        assert await mesh.endpoint("digits").which() == "new"


def test_a_test_without_asyncio_has_the_same() -> None:
    with slotmesh.testing.sync_mesh({"digits": Backend(Digits, {"model": "sync"})}) as mesh:
        assert isinstance(mesh, slotmesh.SyncMesh)
        digits = mesh.endpoint("digits")
        assert digits.which() == "sync"
        assert digits.note.map([1, 2, 3]) == [1, 2, 3]
        assert mesh.instances("digits")[0].seen == [1, 2, 3]
        (first,) = mesh.replica_ids("digits")
        mesh.kill_replica(first)
        mesh.wait_ready()
        assert mesh.replica_ids("digits") != [first]
        assert digits.which() == "sync"
        mesh.apply({"digits": Backend(Digits, {"model": "new"})})
        assert digits.which() == "new"
    assert "mesh under test" not in {thread.name for thread in threading.enumerate()}


def test_a_sync_mesh_that_ends_before_its_block_raises_why() -> None:
    def end_it() -> None:
        with slotmesh.testing.sync_mesh({"digits": Digits}) as mesh:
            (thread,) = [thread for thread in threading.enumerate() if thread.name == "mesh under test"]
            mesh._loop.call_soon_threadsafe(sys.exit, 5)  # as a task that a handler has left behind would
            thread.join()

    with pytest.raises(SystemExit, match="5"):
        end_it()


def test_a_sync_mesh_that_cannot_start_raises_why() -> None:
    class Dead:
        def __init__(self) -> None:
            raise LookupError("no model")

        def call(self) -> None: ...

    with pytest.raises(LookupError, match="no model"), slotmesh.testing.sync_mesh({"dead": Dead}):
        pytest.fail("it was entered")


@pytest.mark.asyncio
async def test_nothing_is_lost_and_nothing_is_logged_where_the_block_ends(caplog: pytest.LogCaptureFixture) -> None:
    async with slotmesh.testing.mesh({"digits": Digits}, routers=2) as mesh:
        assert await mesh.endpoint("digits").note(1) == 1
    assert [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING] == []
