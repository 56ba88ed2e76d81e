"""Which calls a session's failures stop."""

from __future__ import annotations

from math import inf

import pytest

import slotmesh
from replica_service.core.call_states import CallState
from replica_service.core.runs import ReplicaRun
from replica_service.core.session_records import LaneBook, Record, Stops
from tests.unit.replica.hosting import hosting


@pytest.fixture
def failed() -> Stops:
    """Call 10 of generation 3 has failed."""
    made = Stops(LaneBook())
    made.failed("e", "k", 3, 10)
    return made


@pytest.mark.parametrize(
    ("endpoint", "key", "generation", "call_id", "is_stopped"),
    [
        ("e", "k", 3, 11, True),
        ("e", "k", 3, 9, False),
        ("e", "k", 3, 10, False),
        ("e", "k", 4, 11, False),
        ("e", "k", 2, 11, False),
        ("e", "other", 3, 11, False),
        ("other", "k", 3, 11, False),
    ],
)
def test_calls_behind_a_failure_of_their_generation_are_stopped(
    failed: Stops, endpoint: str, key: str, generation: int, call_id: int, is_stopped: bool
) -> None:
    assert failed.is_stopped(endpoint, key, generation, call_id) is is_stopped


def test_the_first_failure_counts(failed: Stops) -> None:
    failed.failed("e", "k", 3, 12)
    assert failed.is_stopped("e", "k", 3, 11)
    failed.failed("e", "k", 3, 5)
    assert failed.is_stopped("e", "k", 3, 6)


def test_an_older_generation_stops_though_newer_ones_have_failed_before(failed: Stops) -> None:
    for generation in range(5, 21):
        failed.failed("e", "k", generation, 10 * generation)
    failed.failed("e", "k", 4, 41)
    assert failed.is_stopped("e", "k", 4, 42)
    assert failed.is_stopped("e", "k", 3, 11)


def test_where_sessions_remember_too_many_the_one_with_most_forgets_its_oldest() -> None:
    book = LaneBook(max_lanes=6)
    small, large = Stops(book), Stops(book)
    small.failed("e", "k", 1, 1)
    for generation in range(1, 7):
        large.failed("e", "a key of any length" * 1_000, generation, 10 * generation)
    assert (len(small), len(large), book.lanes) == (1, 3, 4)
    assert small.is_stopped("e", "k", 1, 2)
    stopped = [large.is_stopped("e", "a key of any length" * 1_000, number, 10 * number + 1) for number in range(1, 7)]
    assert stopped == [False] * 3 + [True] * 3


def of_session(run: ReplicaRun, session: str, call_id: int) -> ReplicaRun:
    ids = range(call_id, call_id + 1)
    run.record = Record(session, 1, ids, 1, attempt=0, recovers=False)
    return run


@slotmesh.deployment()
class Echo:
    """Gives payloads back."""

    def __call__(self, payload: bytes) -> bytes:
        return payload

    @slotmesh.batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def many(self, payloads: list[bytes]) -> list[bytes]:
        return payloads

    @slotmesh.batch(max_batch_size=4, batch_wait_timeout_s=0.02)
    async def gathered(self, payloads: list[bytes]) -> list[bytes]:
        return payloads


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["", "many"])
@pytest.mark.parametrize("failing", ["expired", "no method", "taken back"])
async def test_a_call_that_fails_before_it_starts_stops_the_next_one_in_the_same_moment(
    method: str, failing: str
) -> None:
    async with hosting(Echo) as host:
        called = "nope" if failing == "no method" else method
        left_s = -1.0 if failing == "expired" else inf
        first = of_session(host.run(called, [b"1"], key="k", stop_generation=1, time_left_s=left_s), "s", 1)
        if failing == "taken back":
            first.state = CallState.UPLOADING
        host.engine.submit([first, of_session(host.run(method, [b"2"], key="k", stop_generation=1), "s", 2)])
        if first.state is CallState.UPLOADING:
            host.engine.cancel(host.link, [(first.first, first.first)])
        await host.answered(2)
        reasons = [failure.reason.value for _, failure in sorted(host.outbox.failures_of.items())]
        assert reasons[1] == "PREDECESSOR_FAILED"


@pytest.mark.asyncio
async def test_a_call_that_expires_while_a_batch_gathers_stops_the_next_one_of_its_key() -> None:
    async with hosting(Echo) as host:
        first = host.run("gathered", [b"1"], key="k", stop_generation=1, time_left_s=0.005)
        second = host.run("gathered", [b"2"], key="k", stop_generation=1)
        await host.execute(of_session(first, "s", 1), of_session(second, "s", 2))
        reasons = [failure.reason.value for _, failure in sorted(host.outbox.failures_of.items())]
        assert reasons == ["DEADLINE_IN_QUEUE", "PREDECESSOR_FAILED"]


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["", "many"])
async def test_a_late_call_does_not_run_in_company_either(method: str) -> None:
    async with hosting(Echo) as host:
        await host.execute(of_session(host.run(method, [b"one, 5"], key="k"), "1", 5))
        other = of_session(host.run(method, [b"two, 1"], key="k"), "2", 1)
        late = of_session(host.run(method, [b"one, 3"], key="k"), "1", 3)
        await host.execute(other, late)
        assert [failure.reason.value for failure in host.outbox.failures_of.values()] == ["REPLICA_LOST"]
