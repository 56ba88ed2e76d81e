"""`slotmesh.context()`: right in every kind of method, in what a call has started, and after its end."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from replica_service.convert.runs import runs_of
from replica_service.core.call_metadata import RerunOrigin
from replica_service.core.runs import ReplicaRun
from replica_service.core.session_records import Record
from slotmesh.codec import MSGPACK, encoder
from slotmesh.handlers import batch, deployment
from slotmesh.handlers.context import CallContext, asking, context, contexts, current_place
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.v1 import call_pb2
from tests.unit.replica.hosting import Hosting, hosting

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=[True, False], ids=["known to be asked", "not known"], autouse=True)
def known(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the replica knows that the handler asks, before it does."""
    before, asking.is_known = asking.is_known, request.param
    yield request.param
    asking.is_known = before


@deployment
class Handler:
    def __init__(self) -> None:
        self.background: list[asyncio.Task[str]] = []
        self.contexts: list[CallContext] = []

    async def at_once(self, payload: bytes) -> bytes:
        return context().call_id.encode()

    async def key(self, payload: bytes) -> bytes:
        return f"{context().ordering_key} {context().call_id}".encode()

    async def after_a_wait(self, payload: bytes) -> bytes:
        before = context().call_id
        await asyncio.sleep(0)
        assert context().call_id == before
        return context().call_id.encode()

    async def some_wait(self, payload: bytes) -> bytes:
        if payload == b"wait":
            await asyncio.sleep(0)
        return context().call_id.encode()

    async def in_a_child(self, payload: bytes) -> bytes:
        async def child() -> str:
            await asyncio.sleep(0)
            return context().call_id

        return (await asyncio.create_task(child())).encode()

    async def in_a_thread(self, payload: bytes) -> bytes:
        return (await asyncio.to_thread(lambda: context().call_id)).encode()

    async def leave_behind(self, payload: bytes) -> bytes:
        """Starts a task that asks when the call has long ended."""

        async def child() -> str:
            for _ in range(3):
                await asyncio.sleep(0)
            return f"{payload.decode()} {context().metadata['who']} {context().call_id}"

        self.background.append(asyncio.create_task(child()))
        return payload

    async def leave_behind_and_ask(self, payload: bytes) -> bytes:
        context()
        return await self.leave_behind(payload)

    def blocking(self, payload: bytes) -> bytes:
        return context().call_id.encode()

    async def ask_if_told(self, payload: bytes) -> bytes:
        return context().call_id.encode() if payload else b""

    def blocking_ask_if_told(self, payload: bytes) -> bytes:
        return context().call_id.encode() if payload else b""

    def blocking_elsewhere(self, payload: bytes) -> bytes:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(contextvars.copy_context().run, lambda: context().call_id).result().encode()

    async def values(self, payload: bytes) -> AsyncIterator[bytes]:
        yield context().call_id.encode()
        await asyncio.sleep(0)
        yield context().call_id.encode()

    def blocking_values(self, payload: bytes) -> Iterator[bytes]:
        yield context().call_id.encode()
        yield context().call_id.encode()

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def together(self, items: list[str]) -> list[str]:
        return self._together(items)

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    def blocking_together(self, items: list[str]) -> list[str]:
        return self._together(items)

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def values_together(self, items: list[str]) -> AsyncIterator[list[str]]:
        yield self._together(items)

    async def remember(self, payload: bytes) -> bytes:
        self.contexts.append(context())
        return payload

    def _together(self, items: list[str]) -> list[str]:
        with pytest.raises(RuntimeError, match=r"contexts\(\)\[i\] is that of item i"):
            context()
        assert len(contexts()) == len(items)
        with pytest.raises(IndexError):
            contexts()[len(items)]
        return [f"{item} {call.metadata['who']} {call.call_id}" for item, call in zip(items, contexts(), strict=True)]


encode = encoder(MSGPACK)


def ids(run: ReplicaRun) -> list[bytes]:
    return [b"%d" % (run.first + index) for index in range(run.end)]


@pytest.mark.parametrize(
    "method",
    ["at_once", "after_a_wait", "some_wait", "in_a_child", "in_a_thread", "blocking"],
)
async def test_each_call_hears_of_itself(method: str) -> None:
    async with hosting(Handler, max_ongoing=512) as host:
        unkeyed = host.run(method, [b"", b"wait", b"", b"", b"wait"] * 20)
        keyed = host.run(method, [b"", b"wait", b"", b""] * 20, key="k")
        await host.execute(unkeyed, keyed)
        assert host.results(unkeyed) == ids(unkeyed)
        assert host.results(keyed) == ids(keyed)


@pytest.mark.parametrize("method", ["ask_if_told", "blocking_ask_if_told"])
@pytest.mark.parametrize("key", ["", "k"])
async def test_the_first_to_ask_may_come_behind_others_of_its_run(method: str, key: str) -> None:
    async with hosting(Handler, max_ongoing=512) as host:
        run = host.run(method, [b"", b"", b"ask", b"", b"ask"], key=key)
        await host.execute(run)
        assert host.results(run) == [b"", b"", b"3", b"", b"5"]


@pytest.mark.parametrize("method", ["values", "blocking_values"])
async def test_what_yields_hears_of_its_call_at_each_value(method: str) -> None:
    async with hosting(Handler, max_ongoing=512) as host:
        run = host.run(method, [b""] * 5, streaming=True)
        await host.execute(run)
        assert host.outbox.values_of == {run.first + at: [id_, id_] for at, id_ in enumerate(ids(run))}


@pytest.mark.parametrize("method", ["together", "blocking_together", "values_together"])
async def test_a_batch_hears_of_each_of_its_calls(method: str) -> None:
    async with hosting(Handler, max_ongoing=512) as host:
        runs = [
            host.run(method, [encode(["a"]), encode(["b"])], metadata={"who": "one"}, content_type=MSGPACK),
            host.run(method, [encode(["c"])], metadata={"who": "two"}, content_type=MSGPACK),
        ]
        await host.execute(*runs)
        assert not host.outbox.failures_of, host.outbox.failures_of
        said = [encode("a one 1"), encode("b one 2"), encode("c two 3")]
        if "values" in method:
            said = [b"\x91" + each for each in said]  # a list of all values
        assert [host.outbox.results_of[run_id] for run_id in (1, 2, 3)] == said


async def test_neighbours_of_different_keys_each_hear_of_their_own() -> None:
    """A batch with a column of keys: its runs share payloads and ids, and travel as one streak."""
    async with hosting(Handler, max_ongoing=512) as host:
        keys = ["a", "b", "a", "c", "b", "d"]
        frame = replica_service_pb2.RunFrame(
            batches=[
                replica_service_pb2.RunBatch(
                    first_run_id=1,
                    options=call_pb2.CallOptions(method="key"),
                    payloads=[b""] * len(keys),
                    ordering_keys=keys,
                    partitions=[1] * len(keys),
                    owner_epochs=[1] * len(keys),
                    endpoint="e",
                )
            ]
        )
        arrived = runs_of(frame, host.link, host.clock.now())
        host.engine.submit(arrived.runs)
        await host.answered(len(keys))
        assert host.outbox.results_of == {at: f"{key} {at}".encode() for at, key in enumerate(keys, 1)}


async def left_behind(host: Hosting, method: str) -> list[Any]:
    """What the tasks say that calls have left behind."""
    one = host.run(method, [b"1", b"2", b"3"], metadata={"who": "one"})
    two = host.run(method, [b"4", b"5"], metadata={"who": "two"})
    await host.execute(one, two)
    return await asyncio.gather(*host.handler.background, return_exceptions=True)


@pytest.mark.parametrize("method", ["leave_behind", "leave_behind_and_ask"])
async def test_what_a_call_has_left_behind_hears_of_that_call_or_that_it_cannot_be_told(
    method: str, known: bool
) -> None:
    async with hosting(Handler, max_ongoing=512) as host:
        first = await left_behind(host, method)
        assert asking.is_known
        if known:
            assert first == ["1 one 1", "2 one 2", "3 one 3", "4 two 4", "5 two 5"]
        else:
            told = [each for each in first if isinstance(each, str)]
            assert all(each.split()[0] == each.split()[2] for each in told), "never another call"
            assert all(isinstance(each, str | RuntimeError) for each in first)
        host.handler.background.clear()
        assert await left_behind(host, method) == ["1 one 6", "2 one 7", "3 one 8", "4 two 9", "5 two 10"]


async def test_a_copy_of_the_context_in_a_pool_hears_of_its_call(known: bool) -> None:
    async with hosting(Handler, max_ongoing=512) as host:
        first = host.run("blocking_elsewhere", [b""])
        await host.execute(first)
        run = host.run("blocking_elsewhere", [b""] * 20)
        await host.execute(run)
        assert host.results(run) == ids(run)
        if not known:
            assert "is not known any more" in host.outbox.failures_of[1].message


async def test_all_that_is_known_of_a_call() -> None:
    async with hosting(Handler, max_ongoing=512) as host:
        options: dict[str, Any] = {"metadata": {"who": "me"}, "key": "k", "time_left_s": 30.0}
        await host.execute(host.run("remember", [b"", b""], **options), host.run("remember", [b""]))
        _, second, third = sorted(host.handler.contexts, key=lambda call: int(call.call_id))
        assert (second.endpoint, second.method, second.ordering_key) == ("e", "remember", "k")
        assert second.metadata == {"who": "me"}
        with pytest.raises(TypeError):
            second.metadata["who"] = "you"
        left_s = second.time_left()
        assert left_s is not None
        assert 25 < left_s <= 30
        assert second.deadline is not None
        assert second.deadline.utcoffset() is not None
        assert second.session_id == ""
        assert second.attempt == 0
        assert (third.deadline, third.time_left(), third.ordering_key) == (None, None, "")
        keys = {call.idempotency_key for call in host.handler.contexts}
        assert len(keys) == 3
        assert all(0 < len(key) <= 128 for key in keys)


async def test_calls_of_a_session_have_the_clients_ids_and_the_same_key_wherever_they_run() -> None:
    keys = []
    for attempt, sent_ids in ((0, range(40, 43)), (2, (40, 41, 42))):
        async with hosting(Handler, max_ongoing=512) as host:
            run = host.run("remember", [b"", b"", b""])
            run.record = Record("s1", 1 + attempt, sent_ids, 3, attempt=attempt, recovers=False)
            await host.execute(run)
            calls = host.handler.contexts
            assert [call.call_id for call in calls] == ["40", "41", "42"]
            assert {(call.session_id, call.attempt) for call in calls} == {("s1", attempt)}
            keys.append([call.idempotency_key for call in calls])
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 3


async def test_another_attempt_without_a_session_has_the_key_of_the_first() -> None:
    async with hosting(Handler, max_ongoing=512) as first, hosting(Handler) as second:
        run = first.run("remember", [b"", b"", b""])
        await first.execute(run)
        again = second.run("remember", [b"", b""])
        again.origin = RerunOrigin(first.link.stream_id, [run.first, run.first + 2], 1)
        other = second.run("remember", [b"", b""])
        await second.execute(again, other)
        keys = [call.idempotency_key for call in first.handler.contexts]
        calls = second.handler.contexts
        assert [call.idempotency_key for call in calls[:2]] == [keys[0], keys[2]]
        assert [call.attempt for call in calls] == [1, 1, 0, 0]
        assert not {call.idempotency_key for call in calls[2:]} & set(keys), "streams have names of their own"


async def test_long_names_of_sessions_make_keys_of_the_allowed_length() -> None:
    async with hosting(Handler, max_ongoing=512) as host:
        for number in (1, 2):
            run = host.run("remember", [b""])
            run.record = Record("s" * 5000, 1, range(number, number + 1), 1, attempt=0, recovers=False)
            await host.execute(run)
        keys = [call.idempotency_key for call in host.handler.contexts]
        assert len(set(keys)) == 2
        assert all(len(key) <= 128 for key in keys)


async def test_outside_of_a_call_it_says_what_to_do() -> None:
    for ask in (context, contexts):
        with pytest.raises(RuntimeError, match=rf"slotmesh.{ask.__name__}\(\) outside of a call: ask while"):
            ask()
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(current_place.get()))
    thread.start()
    thread.join(timeout=60)
    assert seen == [None]
