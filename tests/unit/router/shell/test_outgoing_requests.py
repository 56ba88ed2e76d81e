"""Requests of calls that take several, as frames to one replica: in turns, large ones cut, each call's in order."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from router_service.shell.replicas.channel import OutgoingRequests
from slotmesh.calls.result_envelopes import MAX_REQUEST_FRAME_BYTES


def read(outgoing: OutgoingRequests) -> tuple[dict[int, list[bytes]], set[int], int]:
    """What a replica makes of all frames, which calls have ended, and how many frames there were."""
    came: dict[int, list[bytes]] = defaultdict(list)
    parts: dict[int, bytes] = defaultdict(bytes)
    ended: set[int] = set()
    frames = 0
    while outgoing:
        frames += 1
        frame = outgoing.take()
        assert sum(len(each) for batch in frame.batches for each in batch.payloads) <= MAX_REQUEST_FRAME_BYTES
        for batch in frame.batches:
            assert batch.run_id not in ended
            payloads = list(batch.payloads)
            for number, payload in enumerate(payloads):
                parts[batch.run_id] += payload
                if not (batch.is_cut and number == len(payloads) - 1):
                    came[batch.run_id].append(parts.pop(batch.run_id))
            if batch.is_last:
                ended.add(batch.run_id)
    return came, ended, frames


@given(st.lists(st.tuples(st.integers(1, 3), st.lists(st.sampled_from([0, 1, 1000, 300_000, 700_000]), max_size=3))))
def test_every_request_comes_once_and_in_order(sent: list[tuple[int, list[int]]]) -> None:
    outgoing = OutgoingRequests()
    expected: dict[int, list[bytes]] = defaultdict(list)
    for number, (run_id, sizes) in enumerate(sent):
        requests = [bytes([number % 256]) * size for size in sizes]
        outgoing.add(run_id, requests)
        expected[run_id] += requests
    for run_id in expected:
        outgoing.add(run_id, [None])

    came, ended, _ = read(outgoing)

    assert {run_id: came[run_id] for run_id in expected} == dict(expected)
    assert ended == set(expected)


def test_a_small_request_does_not_wait_behind_a_large_one() -> None:
    outgoing = OutgoingRequests()
    outgoing.add(1, [b"x" * 1_000_000])
    outgoing.add(2, [b"y"])

    first, second = outgoing.take(), outgoing.take()

    assert [batch.run_id for batch in first.batches] == [1]
    assert second.batches[0].run_id == 2


def test_what_nobody_waits_for_does_not_leave() -> None:
    outgoing = OutgoingRequests()
    outgoing.add(1, [b"x"])
    outgoing.discard(1)

    assert not outgoing
