"""Lanes that stop after a failure, against a model that executes one call after another.

Batches come in every form: of one key, with a column of keys, with payloads that come later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica_service.convert.runs import runs_of
from replica_service.core.events import PayloadReceived
from slotmesh.errors import Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.v1 import call_pb2
from tests.support.examples import examples
from tests.unit.replica.hosting import Hosting, hosting

KEYS = ("red", "green", "blue")
METHODS = ("quick", "waiting", "threaded")


@dataclass(frozen=True)
class Batch:
    generation: int
    method: str
    is_column: bool
    late: frozenset[int]
    """Which payloads come later."""
    calls: Sequence[tuple[str, bool]]
    """Key, and whether it fails."""


BATCHES = st.lists(
    st.builds(
        Batch,
        generation=st.integers(0, 3),
        method=st.sampled_from(METHODS),
        is_column=st.booleans(),
        late=st.sampled_from((frozenset(), frozenset(), frozenset({0}), frozenset({1, 3}))),
        calls=st.lists(
            st.tuples(st.sampled_from(KEYS), st.sampled_from((False, False, False, True))), min_size=1, max_size=8
        ),
    ),
    min_size=1,
    max_size=6,
)


class Handler:
    """Fails where the payload says so."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def quick(self, payload: bytes) -> bytes:
        return self.result_of(payload)

    async def waiting(self, payload: bytes) -> bytes:
        await asyncio.sleep(0)
        return self.result_of(payload)

    def threaded(self, payload: bytes) -> bytes:
        return self.result_of(payload)

    def result_of(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        if payload.endswith(b"fails"):
            raise ValueError("no")
        return payload


class Model:
    """What becomes of each call, and what is executed of each key."""

    def __init__(self) -> None:
        self.stopped: set[int] = set()
        self.failed: set[int] = set()
        self.executed: dict[str, list[bytes]] = {key: [] for key in KEYS}
        self._over: set[tuple[str, int]] = set()

    def call(self, run_id: int, key: str, generation: int, payload: bytes) -> None:
        if generation and (key, generation) in self._over:
            self.stopped.add(run_id)
            return
        self.executed[key].append(payload)
        if payload.endswith(b"fails"):
            self.failed.add(run_id)
            if generation:
                self._over.add((key, generation))


def payload_of(run_id: int, *, fails: bool) -> bytes:
    return b"%d fails" % run_id if fails else b"%d" % run_id


def to_wire(batch: Batch, first: int, payloads: Sequence[bytes]) -> replica_service_pb2.RunBatch:
    sizes = [len(payload) if at in batch.late else 0 for at, payload in enumerate(payloads)]
    wire = replica_service_pb2.RunBatch(
        first_run_id=first,
        options=call_pb2.CallOptions(
            method=batch.method, stream=call_pb2.StreamOptions(stop_generation=batch.generation)
        ),
        payloads=[b"" if size else payload for payload, size in zip(payloads, sizes, strict=True)],
        chunked_sizes=sizes if any(sizes) else (),
        endpoint="e",
        session_id="s",
        epoch=1,
        call_ids=[first],
    )
    keys = [key for key, _ in batch.calls]
    if batch.is_column:
        wire.ordering_keys.extend(keys)
        wire.partitions.extend(map(len, keys))
        wire.owner_epochs.extend([1] * len(keys))
    else:
        wire.options.ordering_key = keys[0]
        wire.partition, wire.owner_epoch = len(keys[0]), 1
    return wire


async def execute(host: Hosting, batches: Sequence[Batch]) -> Model:
    model = Model()
    first, now = 1, host.clock.now()
    late: dict[int, bytes] = {}
    for batch in batches:
        payloads = [payload_of(first + at, fails=fails) for at, (_, fails) in enumerate(batch.calls)]
        for at, (key, _) in enumerate(batch.calls):
            lane = key if batch.is_column else batch.calls[0][0]
            model.call(first + at, lane, batch.generation, payloads[at])
            if at in batch.late:
                late[first + at] = payloads[at]
        frame = replica_service_pb2.RunFrame(batches=[to_wire(batch, first, payloads)])
        runs, rejected, announced = runs_of(frame, host.link, now)
        assert not rejected
        assert set(announced) == {run_id for run_id in late if run_id >= first}
        host.engine.submit(runs)
        first += len(payloads)
        await asyncio.sleep(0)
    for run_id, payload in sorted(late.items(), key=lambda each: each[0] % 3):
        run = host.link.waiting[run_id]
        host.engine.post(PayloadReceived(run, payload))
        await asyncio.sleep(0)
    await host.answered(first - 1)
    return model


@pytest.mark.timeout(120)
@settings(max_examples=examples(150), deadline=None)
@given(batches=BATCHES, max_ongoing=st.integers(1, 4))
def test_a_lane_does_what_one_call_after_another_would_do(batches: list[Batch], max_ongoing: int) -> None:
    async def check() -> None:
        async with hosting(Handler, max_ongoing=max_ongoing) as host:
            model = await execute(host, batches)
            failures = host.outbox.failures_of
            stopped = {run_id for run_id, each in failures.items() if each.reason is Reason.PREDECESSOR_FAILED}
            assert stopped == model.stopped
            assert set(failures) - stopped == model.failed
            everything = [payload for payloads in model.executed.values() for payload in payloads]
            assert sorted(host.handler.seen) == sorted(everything)
            for payloads in model.executed.values():
                assert [payload for payload in host.handler.seen if payload in payloads] == payloads
            async with asyncio.timeout(10):  # a thread's turn ends a moment after its answers
                await host.engine.idle()

    asyncio.run(check())
