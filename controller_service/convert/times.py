"""Times of day on the wire."""

from __future__ import annotations

from typing import Final

from google.protobuf import timestamp_pb2

_END_OF_TIMES: Final = 253_402_300_800
"""Seconds from 1970 to the year 10000, from where on a Timestamp says nothing."""


def timestamp(wall_s: float) -> timestamp_pb2.Timestamp:
    wire = timestamp_pb2.Timestamp()
    wire.FromMicroseconds(round(wall_s * 1e6))
    return wire


def seconds_of(wire: timestamp_pb2.Timestamp) -> float | None:
    """Seconds since 1970; None where it says nothing."""
    return wire.ToMicroseconds() / 1e6 if 0 < wire.seconds < _END_OF_TIMES else None
