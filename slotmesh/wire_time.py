"""Times in messages, as seconds: durations and times of day.

Purpose: what `FromNanoseconds` and `ToNanoseconds` do, in one function of Python instead of two or three; a reservation
has a dozen of them on its way.
Invariants: durations that are written are not negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

_SECOND_NS: Final = 1_000_000_000


def put_seconds(wire: Duration | Timestamp, seconds: float) -> None:
    """Writes a time into its message, to the nanosecond."""
    wire.seconds, wire.nanos = divmod(round(seconds * 1e9), _SECOND_NS)


def seconds_of(wire: Duration | Timestamp) -> float:
    """The time that a message says."""
    return (wire.seconds * _SECOND_NS + wire.nanos) / 1e9
