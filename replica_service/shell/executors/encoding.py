"""Encodes what handlers return as payloads: when the call returns, before other code of the handler runs.

Invariants: a caller gets the value as it was when its own call returned, also where the handler changes it later; a
result that cannot be sent fails its own call, and no other.
Owner: the executors, on the thread that runs the handler and in the context of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from replica_service.core.calls import ReplicaRun
from replica_service.shell.handler.failures import unsendable
from replica_service.shell.handler.methods import FailedCall
from slotmesh.codec import encode_each, encoder
from slotmesh.errors import Failure

Encode = Callable[[Any], bytes]
"""Raises whatever the result raises when it is read: `Unsendable` is made of that."""
Outcome: TypeAlias = tuple[ReplicaRun, int, int, "list[bytes] | Failure"]
"""Of consecutive calls: run, index of the first, how many they are, and their payloads, or why all of them fail."""


class Unsendable(FailedCall):
    """The handler returned what the call's content type cannot carry, or what raises when it is read."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(unsendable(error))


def encoder_of(run: ReplicaRun) -> Encode:
    """Encodes the result of one call of the run."""
    return _nothing if run.options.no_reply else encoder(run.options.content_type)


def encoded(run: ReplicaRun, value: Any) -> bytes:
    """What one call of the run has returned. Raises Unsendable."""
    try:
        return encoder_of(run)(value)
    except BaseException as error:  # noqa: BLE001 - a foreign object may fail in any way when it is read
        raise Unsendable(error) from None


def encoded_each(run: ReplicaRun, lo: int, values: Sequence[Any]) -> Iterator[Outcome]:
    """What consecutive calls, from index `lo` on, have returned together. One that cannot be sent fails alone."""
    if run.options.no_reply:
        yield run, lo, len(values), [b""] * len(values)
        return
    try:
        payloads = encode_each(run.options.content_type, values)
    except BaseException:  # noqa: BLE001 - as above: each by itself, then
        payloads = []
    if len(payloads) == len(values):
        yield run, lo, len(payloads), payloads
        return
    for index in range(len(values)):
        try:
            payload = encoded(run, values[index])
        except Unsendable as error:
            yield run, lo + index, 1, error.failure
        else:
            yield run, lo + index, 1, [payload]


def _nothing(_value: Any) -> bytes:
    return b""
