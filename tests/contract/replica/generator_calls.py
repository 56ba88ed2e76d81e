"""Calls of handlers that yield, for tests of a replica."""

from __future__ import annotations

import pytest

from tests.contract.yielding_handlers import Handler
from tests.support.execute_stream import ExecuteStream
from tests.support.replicas import RunningReplica
from tests.support.wait import wait_until

HANDLERS = "tests.contract.yielding_handlers"
NO, UNKNOWN, YES = 1, 2, 3
SESSION = "9e4" * 10 + "00"
BOTH = pytest.mark.parametrize("method", ["count", "count_in_thread"])
CREDIT = 256
MIB = 1024 * 1024


def handler_of(replica: RunningReplica) -> Handler:
    handler = replica.handler
    assert isinstance(handler, Handler)
    return handler


def counted(*range_: int) -> list[bytes]:
    return [b"%d" % number for number in range(*range_)]


def failure(stream: ExecuteStream, run_id: int) -> tuple[str, int]:
    found = stream.failures[run_id]
    return found.reason, found.executed


async def has_values(stream: ExecuteStream, run_id: int, count: int) -> None:
    await wait_until(lambda: len(stream.values.get(run_id, ())) >= count, what=f"{count} values of {run_id}")


async def flowed(stream: ExecuteStream) -> None:
    """What the replica had to say has come: a question is answered behind it."""
    await stream.reconcile("0" * 32, 1)
