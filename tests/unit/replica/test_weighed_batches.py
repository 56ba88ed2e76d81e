"""Batches that are bounded by what their calls weigh: `batch_size_fn`, in the engine with real executors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from slotmesh.codec import JSON
from slotmesh.errors import Executed, Reason
from slotmesh.handlers import batch, deployment
from tests.support.foreign_code import KINDS
from tests.support.wait import wait_until
from tests.unit.replica.hosting import hosting

pytestmark = pytest.mark.asyncio


class Odd:
    """Nothing can be had of it."""

    def __float__(self) -> float:
        raise LookupError("no number")

    def __repr__(self) -> str:
        raise LookupError("no text")


def tokens(item: bytes) -> float:
    match item:
        case b"raise":
            raise ValueError("no good")
        case b"exit":
            raise SystemExit(1)
        case _ if item.decode() in KINDS:
            return KINDS[item.decode()]()
        case b"text":
            return "many"  # type: ignore[return-value]
        case b"less":
            return -1
        case b"nan":
            return float("nan")
        case b"huge":
            return 10**5000
        case b"odd":
            return Odd()  # type: ignore[return-value]
        case _:
            return len(item)


class Shared:
    def __init__(self) -> None:
        self.given: list[Any] = []


@deployment
class OnLoop(Shared):
    @batch(max_batch_size=10, batch_wait_timeout_s=0.0, batch_size_fn=tokens)
    async def read(self, texts: list[bytes]) -> list[bytes]:
        self.given.append(texts)
        return [text.upper() for text in texts]

    @batch(max_batch_size=10, batch_wait_timeout_s=3600.0, batch_size_fn=len)
    async def read_lists(self, lists: list[list[int]]) -> list[int]:
        self.given.append(lists)
        return [len(each) for each in lists]

    @batch(max_batch_size=10, batch_wait_timeout_s=0.0, batch_size_fn=lambda width, height: width * height)
    async def draw(self, width: list[int], height: list[int]) -> list[int]:
        self.given.append((width, height))
        return width

    @batch(max_batch_size=10, batch_wait_timeout_s=0.0, batch_size_fn=len)
    async def read_named(self, *, lists: list[list[int]], factor: list[int]) -> list[int]:
        self.given.append(lists)
        return factor

    @batch(max_batch_size=10, batch_wait_timeout_s=0.0, batch_size_fn=len)
    async def pairs(self, texts: list[bytes]) -> AsyncIterator[list[int]]:
        self.given.append(texts)
        yield [1 for _ in texts]
        yield [2 for _ in texts]


@deployment(max_ongoing=64)
class InThreads(Shared):
    @batch(max_batch_size=10, batch_wait_timeout_s=0.0, batch_size_fn=tokens)
    def read(self, texts: list[bytes]) -> list[bytes]:
        self.given.append(texts)
        return [text.upper() for text in texts]

    @batch(max_batch_size=10, batch_wait_timeout_s=3600.0, batch_size_fn=len)
    def read_lists(self, lists: list[list[int]]) -> list[int]:
        self.given.append(lists)
        return [len(each) for each in lists]

    @batch(max_batch_size=10, batch_wait_timeout_s=0.0, batch_size_fn=lambda width, height: width * height)
    def draw(self, width: list[int], height: list[int]) -> list[int]:
        self.given.append((width, height))
        return width

    @batch(max_batch_size=10, batch_wait_timeout_s=0.0, batch_size_fn=len)
    def read_named(self, *, lists: list[list[int]], factor: list[int]) -> list[int]:
        self.given.append(lists)
        return factor

    @batch(max_batch_size=10, batch_wait_timeout_s=0.0, batch_size_fn=len)
    def pairs(self, texts: list[bytes]) -> Iterator[list[int]]:
        self.given.append(texts)
        yield [1 for _ in texts]
        yield [2 for _ in texts]


both = pytest.mark.parametrize("handler", [OnLoop, InThreads])
keyed = pytest.mark.parametrize("key", ["", "k"])


@both
async def test_a_batch_is_cut_where_the_next_call_does_not_fit_and_nothing_overtakes_that_one(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("read", [b"aaaa", b"bbbb", b"ccc", b"d", b"eeeeee", b"f" * 10, b""])
        await host.execute(run)
        assert host.handler.given == [[b"aaaa", b"bbbb"], [b"ccc", b"d", b"eeeeee"], [b"f" * 10, b""]]
        assert host.results(run) == [payload.upper() for payload in host.payloads(run)]


@both
async def test_calls_of_a_key_that_do_not_fit_keep_their_order(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("read", [b"aaaa", b"bbbbbbbb", b"cccc", b"d"], key="k")
        await host.execute(run)
        assert host.handler.given == [[b"aaaa"], [b"bbbbbbbb"], [b"cccc", b"d"]]


@both
@keyed
async def test_a_call_that_is_too_heavy_fails_alone_with_both_numbers(handler: type, key: str) -> None:
    async with hosting(handler) as host:
        run = host.run("read", [b"aaaa", b"x" * 11, b"bbbb"], key=key)
        outbox = await host.execute(run)
        assert host.results(run) == [b"AAAA", None, b"BBBB"]
        assert host.handler.given == [[b"aaaa", b"bbbb"]]
        failure = outbox.failures_of[run.first + 1]
        assert (failure.reason, failure.executed) == (Reason.BAD_ARGUMENTS, Executed.NO)
        assert failure.message.startswith("the call weighs 11 by the method's batch_size_fn, and a batch at most 10")
        assert failure.metadata == {"weight": "11", "max_batch_size": "10"}
        await host.engine.idle()


@both
@keyed
@pytest.mark.parametrize(
    ("item", "words"),
    [
        (b"raise", "batch_size_fn raised ValueError: no good"),
        (b"exit", "batch_size_fn raised SystemExit: 1"),
        *((kind.encode(), f"batch_size_fn raised {kind}: ") for kind in KINDS),
        (b"text", "batch_size_fn must return a number that is finite and not negative, got 'many'"),
        (b"less", "finite and not negative, got -1"),
        (b"nan", "finite and not negative, got nan"),
        (b"huge", "finite and not negative, got a value of type int"),
        (b"odd", "finite and not negative, got a value of type Odd"),
    ],
)
async def test_a_call_that_cannot_be_weighed_fails_alone(handler: type, key: str, item: bytes, words: str) -> None:
    async with hosting(handler) as host:
        run = host.run("read", [b"aaaa", item, b"bbbb"], key=key)
        outbox = await host.execute(run)
        assert host.results(run) == [b"AAAA", None, b"BBBB"]
        failure = outbox.failures_of[run.first + 1]
        assert (failure.reason, failure.executed) == (Reason.HANDLER_ERROR, Executed.NO)
        assert words in failure.message
        await host.engine.idle()


@both
@keyed
async def test_arguments_are_checked_before_they_are_weighed(handler: type, key: str) -> None:
    async with hosting(handler) as host:
        run = host.run("read_lists", [b"[[1]]", b'["x"]', b"[[1,2,3,4,5,6,7,8,9]]"], content_type=JSON, key=key)
        outbox = await host.execute(run)
        assert host.results(run) == [b"1", None, b"9"]
        assert outbox.failures_of[run.first + 1].reason is Reason.BAD_ARGUMENTS


@both
@keyed
async def test_arguments_are_decoded_once(handler: type, key: str) -> None:
    async with hosting(handler) as host:
        method = host.engine.methods["read_lists"]
        decoded: list[bytes] = []
        decode = method.decode

        def counted(content_type: str, payload: bytes) -> Any:
            decoded.append(payload)
            return decode(content_type, payload)

        method.decode = counted  # type: ignore[method-assign]
        run = host.run(
            "read_lists", [b"[[1,2,3,4,5]]", b"[[1,2,3,4]]", b"[[1,2,3]]", b"[[1]]"], content_type=JSON, key=key
        )
        host.engine.submit([run])
        await host.answered(2)
        host.engine.submit([filler := host.run("read_lists", [b"[[1,2,3,4,5,6]]"], content_type=JSON)])
        await host.answered(5)
        assert decoded == [*host.payloads(run), *host.payloads(filler)]


@both
async def test_a_function_of_more_than_an_item_gets_all_arguments_by_position_or_name(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("draw", [b"[2,3]", b"[2,3]", b'{"height":5,"width":2}'], content_type=JSON)
        await host.execute(run)
        assert host.handler.given == [([2], [3]), ([2], [3]), ([2], [5])]


@both
async def test_an_item_may_be_given_by_name(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("read_lists", [b'{"lists":[1,2,3,4,5,6]}', b'{"lists":[1,2,3,4]}'], content_type=JSON)
        await host.execute(run)
        assert host.handler.given == [[[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]]]


@both
async def test_an_item_that_can_only_be_given_by_name_is_weighed(handler: type) -> None:
    async with hosting(handler) as host:
        payloads = [b'{"factor":1,"lists":[1,2,3,4,5,6]}', b'{"factor":2,"lists":[1,2,3,4,5]}']
        run = host.run("read_named", payloads, content_type=JSON)
        await host.execute(run)
        assert host.results(run) == [b"1", b"2"]
        assert host.handler.given == [[[1, 2, 3, 4, 5, 6]], [[1, 2, 3, 4, 5]]]


@both
@keyed
async def test_a_lower_limit_fails_what_waits_and_is_too_heavy_now(handler: type, key: str) -> None:
    async with hosting(handler) as host:
        read = host.handler.read_lists
        run = host.run("read_lists", [b"[[1,2,3,4,5]]", b"[[1]]"], content_type=JSON, key=key)
        host.engine.submit([run])
        try:
            read.set_max_batch_size(4)
            await host.answered(1)
            read.set_batch_wait_timeout_s(0.0)
            await host.answered(2)
        finally:
            read.set_max_batch_size(10)
            read.set_batch_wait_timeout_s(3600.0)
        assert host.results(run) == [None, b"1"]
        assert host.outbox.failures_of[run.first].metadata == {"weight": "5", "max_batch_size": "4"}
        await host.engine.idle()


@both
@keyed
async def test_calls_that_are_taken_back_weigh_nothing(handler: type, key: str) -> None:
    async with hosting(handler) as host:
        run = host.run("read_lists", [b"[[1,2,3,4,5]]", b"[[1,2,3]]"], content_type=JSON, key=key)
        host.engine.submit([run])
        host.engine.cancel(host.link, [(run.first, run.first)])
        more = host.run("read_lists", [b"[[1,2,3]]"], content_type=JSON)
        host.engine.submit([more])
        assert host.engine.scheduler.batchers["read_lists"].gathered.load == 6
        await host.execute(last := host.run("read_lists", [b"[[1,2,3,4]]"], content_type=JSON))
        assert host.results(last) == [b"4"]
        await wait_until(lambda: len(host.outbox.order) == 4)
        assert host.handler.given == [[[1, 2, 3], [1, 2, 3], [1, 2, 3, 4]]]


@both
async def test_what_yields_is_weighed_too(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("pairs", [b'["aaaaaaaa"]', b'["bbbb"]', b'["cccc"]'], content_type=JSON)
        host.engine.submit([run])
        await host.answered(3)
        assert [len(given) for given in host.handler.given] == [2, 1]
