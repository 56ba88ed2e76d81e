"""Times in messages are what protobuf's own functions make of them."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.convert.slot_requests import put_seconds, seconds_of


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.1, 0.999_999_999_9, 1.0, 59.25, 1e7 + 0.123, 1.8e9 + 0.5])
@pytest.mark.parametrize("kind", [Duration, Timestamp])
def test_a_time_is_written_and_read_as_by_protobuf(kind: type[Duration] | type[Timestamp], seconds: float) -> None:
    wanted, written = kind(), kind()
    wanted.FromNanoseconds(round(seconds * 1e9))
    put_seconds(written, seconds)
    assert written == wanted
    assert seconds_of(written) == wanted.ToNanoseconds() / 1e9
    assert seconds_of(written) == pytest.approx(seconds, abs=1e-9)


def test_what_peers_write_is_read_as_it_stands() -> None:
    assert seconds_of(Duration(seconds=1, nanos=-500_000_000)) == 0.5
    assert seconds_of(Duration(seconds=-1)) == -1.0
    assert seconds_of(Duration()) == 0.0
