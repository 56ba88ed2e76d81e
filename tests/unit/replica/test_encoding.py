"""Results on their way to payloads: whole arrays at once, and what cannot be sent fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest

from replica_service.core.call_options import ReplicaCallOptions
from replica_service.core.calls import ReplicaRun, RouterPeer
from replica_service.shell.executors.encoding import Encoding
from slotmesh.codec import JSON, MSGPACK, OCTET_STREAM, encode
from slotmesh.errors import Failure
from tests.support.python_calls import calls_to_python


class Sink(Encoding):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.sent: dict[int, bytes] = {}
        self.failures: dict[int, Failure] = {}
        self.done = 0

    def payloads(self, run: ReplicaRun, lo: int, payloads: Sequence[bytes]) -> None:
        self.sent.update(enumerate(payloads, lo))

    def failed(self, run: ReplicaRun, lo: int, count: int, failure: Failure) -> None:
        self.failures.update(dict.fromkeys(range(lo, lo + count), failure))

    def _done(self, run: ReplicaRun, lo: int, count: int) -> None:
        self.done += count


def run_of(count: int, content_type: str, *, no_reply: bool = False) -> ReplicaRun:
    options = ReplicaCallOptions(method="m", content_type=content_type, ordering_key="", no_reply=no_reply)
    return ReplicaRun(RouterPeer(), 1, [b""] * count, options, "e", 0.0, inf)


@pytest.mark.parametrize("content_type", [MSGPACK, OCTET_STREAM])
def test_an_array_is_encoded_at_once_a_row_a_call(content_type: str) -> None:
    def steps(count: int) -> int:
        sink, rows = Sink(), np.arange(2.0 * count).reshape(count, 2)
        run = run_of(count, content_type)
        cost = calls_to_python(lambda: sink.results(run, 0, rows))  # type: ignore[arg-type]
        assert sink.sent == {index: encode(content_type, row) for index, row in enumerate(rows)}
        return cost

    steps(2)
    assert steps(1000) == steps(2) < 40


def test_rows_that_cannot_be_sent_fail_one_by_one() -> None:
    sink = Sink()
    sink.results(run_of(2, JSON), 0, np.array([[1j], [2j]]))  # type: ignore[arg-type]
    assert not sink.sent
    assert sorted(sink.failures) == [0, 1]


class Exits:
    """Ends more than it should when it is looked at."""

    def tolist(self) -> list[int]:
        raise SystemExit


def test_a_result_that_exits_when_it_is_read_fails_its_call_and_no_other() -> None:
    sink = Sink()
    sink.results(run_of(3, JSON), 0, [1, Exits(), 3])
    assert sink.sent == {0: b"1", 2: b"3"}
    assert list(sink.failures) == [1]


def test_nobody_waits_for_rows_without_reply() -> None:
    sink = Sink()
    sink.results(run_of(3, JSON, no_reply=True), 0, np.ones((3, 1)))  # type: ignore[arg-type]
    assert (sink.done, sink.sent) == (3, {})
