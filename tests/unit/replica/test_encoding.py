"""Results on their way to payloads: whole arrays at once, and what cannot be sent fails alone."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.shell.executors.protocol import encoded_each
from slotmesh.codec import JSON, MSGPACK, OCTET_STREAM, encode
from slotmesh.errors import Failure
from tests.support.python_calls import calls_to_python


class Outcomes:
    """What calls of a run came to that returned these values together."""

    def __init__(self, run: ReplicaRun, values: Any) -> None:
        self.sent: dict[int, bytes] = {}
        self.failures: dict[int, Failure] = {}
        for _, lo, count, outcome in encoded_each(run, 0, values):
            if isinstance(outcome, Failure):
                self.failures.update(dict.fromkeys(range(lo, lo + count), outcome))
            else:
                assert count == len(outcome)
                self.sent.update(enumerate(outcome, lo))


def run_of(count: int, content_type: str, *, no_reply: bool = False) -> ReplicaRun:
    options = ReplicaCallOptions(method="m", content_type=content_type, ordering_key="", no_reply=no_reply)
    return ReplicaRun(RouterPeer(), 1, [b""] * count, options, "e", 0.0, inf)


@pytest.mark.parametrize("content_type", [MSGPACK, OCTET_STREAM])
def test_an_array_is_encoded_at_once_a_row_a_call(content_type: str) -> None:
    def steps(count: int) -> int:
        rows = np.arange(2.0 * count).reshape(count, 2)
        run = run_of(count, content_type)
        assert Outcomes(run, rows).sent == {index: encode(content_type, row) for index, row in enumerate(rows)}
        return calls_to_python(lambda: list(encoded_each(run, 0, rows)))  # type: ignore[arg-type]

    steps(2)
    assert steps(1000) == steps(2) < 40


def test_rows_that_cannot_be_sent_fail_one_by_one() -> None:
    outcomes = Outcomes(run_of(2, JSON), np.array([[1j], [2j]]))
    assert not outcomes.sent
    assert sorted(outcomes.failures) == [0, 1]


class Exits:
    """Ends more than it should when it is looked at."""

    def tolist(self) -> list[int]:
        raise SystemExit


def test_a_result_that_exits_when_it_is_read_fails_its_call_and_no_other() -> None:
    outcomes = Outcomes(run_of(3, JSON), [1, Exits(), 3])
    assert outcomes.sent == {0: b"1", 2: b"3"}
    assert list(outcomes.failures) == [1]


def test_nobody_waits_for_rows_without_reply() -> None:
    assert Outcomes(run_of(3, JSON, no_reply=True), np.array([1j, 2j, 3j])).sent == dict.fromkeys(range(3), b"")
