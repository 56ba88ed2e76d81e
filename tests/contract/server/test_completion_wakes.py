"""How an event loop hears of what gRPC has completed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from slotmesh.runtime.completion_wakes import _End, _Sockets, wake_once_for_all
from tests.support.mesh import ROOT

CALLS = 2_000
COUNTING = f"""
import asyncio, sys
from slotmesh.runtime import completion_wakes
from tests.contract.server.served_router import call, serving

reads = []
recv = completion_wakes._End.recv

def counted(end, count):
    read = recv(end, count)
    reads.append(len(read))
    return read

completion_wakes._End.recv = counted

async def main():
    async with serving() as (_, _, channel):
        await asyncio.gather(*(call(channel, timeout_s=60.0) for _ in range({CALLS})))

asyncio.run(main())
print(len(reads), sum(reads), max(reads, default=0))
"""


def test_one_wake_is_for_all_that_has_completed() -> None:
    """Where this fails after an upgrade of gRPC, a flood of rpcs holds up all others again."""
    told = subprocess.run(
        [sys.executable, "-c", COUNTING], cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
    )
    reads, completions, most = map(int, told.stdout.split())
    assert completions > 4 * CALLS, "of both ends of each call"
    assert reads < completions
    assert most > 1


def test_the_end_that_is_read_is_not_waited_for() -> None:
    read, write = _Sockets.socketpair()
    read.setblocking(False)
    with pytest.raises(BlockingIOError):
        read.recv(1)
    os.write(write.fileno(), b"1" * 3_000)
    assert len(read.recv(1)) == 3_000
    with pytest.raises(BlockingIOError):
        read.recv(1)
    descriptors = [read.fileno(), write.fileno()]
    read.close()
    read.close()
    del write
    for each in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(each)


def test_what_it_takes_for_a_module_is_one_else() -> None:
    assert _Sockets().AF_INET == __import__("socket").AF_INET
    assert isinstance(_Sockets.socketpair()[0], _End)


def test_a_grpc_that_has_no_such_inside_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cygrpc, "socket", "another")
    wake_once_for_all()
    assert cygrpc.socket == "another"
