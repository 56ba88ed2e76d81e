"""What is left of rpcs that end with a status: nothing, and no garbage collection is needed for that."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from slotmesh.errors import Failure, Reason
from slotmesh.grpc_internals import accepting, is_off
from slotmesh.server import guards
from slotmesh.status import abort, to_exception
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.contract.server.served_router import Context, Setting, StatusCode, call
from tests.support.wait import wait_until

RPCS = 50
REFUSAL = Failure(reason=Reason.SLOT_UNKNOWN, message="no such slot")

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(is_off(), reason="SLOTMESH_PLAIN_GRPC is set: what this file tests is turned off"),
]


@pytest_asyncio.fixture(autouse=True)
async def _no_collection(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(accepting, "MOST_OF_METHOD", accepting.FIRST_OF_METHOD)  # rpcs are requested from here on
    await call(setting[2])  # connects
    gc.collect()
    gc.freeze()  # each look at the objects is for new ones only
    gc.disable()
    yield
    gc.enable()


def _stub(setting: Setting) -> Any:
    return router_service_pb2_grpc.RouterServiceStub(setting[2])


def rpcs_of_servers() -> int:
    """Those that there are, and those that are asked for."""
    return sum(type(each).__name__ == "RPCState" for each in gc.get_objects())


async def _abort(_request: Any, context: Context) -> Any:
    await abort(context, REFUSAL)


async def _raise(_request: Any, _context: Context) -> Any:
    raise to_exception(REFUSAL)


async def _abort_while_failing(_request: Any, context: Context) -> Any:
    try:
        raise OSError("as it looks for it")
    except OSError:
        await abort(context, REFUSAL)


async def _fail(_request: Any, _context: Context) -> Any:
    raise ValueError("a defect")


async def _abort_in_a_group(_request: Any, context: Context) -> Any:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(abort(context, REFUSAL))


async def _fail_after_aborting(_request: Any, context: Context) -> Any:
    try:
        await abort(context, REFUSAL)
    except grpc.aio.AbortError as error:
        raise OSError("as if that mattered") from error


ENDS = {
    "aborts in a group": _abort_in_a_group,
    "fails after aborting": _fail_after_aborting,
    "aborts": _abort,
    "raises": _raise,
    "aborts while it fails": _abort_while_failing,
    "fails": _fail,
}


class _NoLog:
    """pytest keeps what is logged, and with it the traceback of a defect."""

    def error(self, *_: object, **_fields: object) -> None: ...


@pytest.mark.parametrize("rpc", ["Call", "CallStreaming", "StreamCalls"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_refused_rpc_leaves_nothing(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, rpc: str, end: str
) -> None:
    monkeypatch.setattr(guards, "_log", _NoLog())
    router, stub = setting[1], _stub(setting)
    router.unary = ENDS[end]
    router.stream = lambda context: ENDS[end](None, context)
    before = rpcs_of_servers()
    for _ in range(RPCS):
        if rpc == "StreamCalls":
            stream = stub.StreamCalls()
            assert await stream.code() is not StatusCode.OK
            del stream
        else:
            request: Any = getattr(router_service_pb2, f"{rpc}Request")()
            started = getattr(stub, rpc)(request)
            with pytest.raises(grpc.aio.AioRpcError):
                await (started if rpc == "Call" else _all_of(started))
    # A server asks for some more or some fewer of those that come.
    await wait_until(lambda: rpcs_of_servers() < before + RPCS / 2, what="nothing is left of them")


async def _all_of(started: Any) -> None:
    async for _ in started:
        pass


async def test_an_abort_of_another_rpc_is_a_defect(setting: Setting) -> None:
    _, router, channel = setting

    async def fail(_request: Any, _context: Context) -> Any:
        raise grpc.aio.AbortError("of another")

    router.unary = fail
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel)
    assert caught.value.code() is StatusCode.INTERNAL
    assert "see the log" in (caught.value.details() or "")
