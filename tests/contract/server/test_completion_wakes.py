"""How an event loop hears of what gRPC has completed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from slotmesh.grpc_internals import is_off
from slotmesh.grpc_internals.completion_wakes import LEFT, MANY, _Sockets, keep_wakes_few
from tests.contract.server.served_router import OLDER
from tests.support.mesh import ROOT

pytestmark = pytest.mark.skipif(is_off(), reason="SLOTMESH_PLAIN_GRPC is set: what this file tests is turned off")
CALLS = 2_000
COUNTING = f"""
import asyncio, sys
from slotmesh.grpc_internals import completion_wakes
from tests.contract.server.served_router import call, serving

reads = []
recv = completion_wakes._ReadMost.recv

def counted(end, count):
    read = recv(end, count)
    reads.append(len(read))
    return read

completion_wakes._ReadMost.recv = counted

async def main():
    async with serving() as (_, _, channel):
        await asyncio.gather(*(call(channel, timeout_s=60.0) for _ in range({CALLS})))

asyncio.run(main())
print(len(reads), sum(reads))
"""


@pytest.mark.skipif(OLDER, reason="completions do not gather: its own loop takes in rpcs one by one")
def test_one_wake_is_for_all_that_has_completed() -> None:
    """Where this fails after an upgrade of gRPC, a flood of rpcs holds up all others again."""
    told = subprocess.run(
        [sys.executable, "-c", COUNTING], cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
    )
    reads, completions = map(int, told.stdout.split())
    assert completions > 4 * CALLS, "of both ends of each call"
    assert reads < completions


CLOSED_LOOPS = f"""
import asyncio, os, threading
from slotmesh.runtime.channels import open_channel
from tests.contract.server.served_router import call, serving

CALLS = {LEFT // 2}
kept = []

async def leave(address, all_wait):
    channel = open_channel(address)
    kept.append(channel)
    kept.extend(asyncio.ensure_future(call(channel, b"late", timeout_s=60.0)) for _ in range(CALLS))
    await asyncio.to_thread(all_wait.wait)

async def main():
    async with serving() as (server, router, channel):
        gone, all_wait, echo, waiting = asyncio.Event(), threading.Event(), router.unary, []

        async def unary(request, context):
            if request.payload == b"late":
                waiting.append(request)
                if len(waiting) == CALLS:
                    all_wait.set()
                await gone.wait()
            return await echo(request, context)

        router.unary = unary
        other = asyncio.new_event_loop()

        def run():
            other.run_until_complete(leave(server.address, all_wait))
            other.close()

        await asyncio.to_thread(run)
        gone.set()
        for _ in range(100):
            await call(channel, timeout_s=10.0)
        print("answered", flush=True)
        os._exit(0)

asyncio.run(main())
"""


def test_completions_for_a_loop_that_was_closed_keep_nobody_waiting() -> None:
    """Each of them ends the look at the queue by an error: what stands behind them is not forgotten."""
    told = subprocess.run(
        [sys.executable, "-c", CLOSED_LOOPS], cwd=ROOT, check=False, capture_output=True, text=True, timeout=120
    )
    assert told.stdout == "answered\n", told.stderr[-4_000:]


def test_most_is_read_at_once_and_nobody_waits() -> None:
    read, write = _Sockets.socketpair()
    read.setblocking(False)
    with pytest.raises(BlockingIOError):
        read.recv(1)
    write.send(b"1")
    assert read.recv(1) == b"1"
    for _ in range(MANY):
        os.write(write.fileno(), b"1")
    assert len(read.recv(1)) == MANY - LEFT
    for _ in range(LEFT):
        assert read.recv(1) == b"1"
    with pytest.raises(BlockingIOError):
        read.recv(1)
    read.close()
    write.close()


def test_what_it_takes_for_a_module_is_one_else() -> None:
    assert _Sockets().AF_INET == socket.AF_INET


def test_a_grpc_that_has_no_such_inside_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cygrpc, "socket", "another")
    keep_wakes_few()
    assert cygrpc.socket == "another"
