"""A handler that yields as many values as the payload says."""

from __future__ import annotations

from collections.abc import Iterator

from slotmesh.errors import Executed, Failure, Reason

BROKEN = Failure(
    reason=Reason.HANDLER_ERROR,
    message="ValueError: odd",
    executed=Executed.YES,
    metadata={"replica_id": "decode-0"},
)


def count(payload: bytes) -> Iterator[bytes | Failure]:
    """As many values as the payload says; `!` after the number: then it fails."""
    for number in range(int(payload.rstrip(b"!"))):
        yield b"%d" % number
    if payload.endswith(b"!"):
        yield BROKEN


def counted(number: int) -> list[bytes]:
    """The values of one that does not fail."""
    return [b"%d" % each for each in range(number)]
