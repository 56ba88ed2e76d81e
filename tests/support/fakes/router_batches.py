"""Batches of calls as the scripted router gets them, and what it answers by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from slotmesh.errors import Failure, Reason
from slotmesh.v1 import call_pb2

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it arrived."""

    frame: int
    """Which frame of the stream, counted from 1."""
    ids: Sequence[int]
    options: call_pb2.CallOptions
    payloads: list[bytes]
    resend: bool = False
    age_s: float = 0.0
    keys: Sequence[str] = ()
    """The column of ordering keys, where it has one."""
    sizes: Sequence[int] = ()
    """Of the payloads, those that come in chunks included."""


CANCELLED = Failure(reason=Reason.CANCELLED, message="taken back by its caller")

Answer = Callable[[Batch], Sequence[bytes | Failure]]
"""One result or failure for each call of a batch."""

Yield = Callable[[bytes], Iterable[bytes | Failure]]
"""What a handler yields for this payload, where its values are taken one by one. A failure ends it."""


def echo(batch: Batch) -> Sequence[bytes | Failure]:
    return batch.payloads


def yield_once(payload: bytes) -> Iterable[bytes | Failure]:
    return (payload,)
