"""Times of day on the wire."""

from __future__ import annotations

from google.protobuf import timestamp_pb2


def timestamp(wall_s: float) -> timestamp_pb2.Timestamp:
    wire = timestamp_pb2.Timestamp()
    wire.FromMicroseconds(round(wall_s * 1e6))
    return wire
