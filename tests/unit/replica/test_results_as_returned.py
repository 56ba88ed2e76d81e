"""Each caller gets the value as it was when its own call returned, whatever the handler does with it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

from examples.own_proto.greeter_pb2 import GreetRequest, GreetResponse
from slotmesh.codec import JSON, MSGPACK, OCTET_STREAM, PROTOBUF, TENSORS, decode, decoder, encode_arguments
from slotmesh.errors import Executed
from slotmesh.handlers import batch, deployment
from tests.unit.replica.hosting import Hosting, hosting
from tests.unit.replica.ways_to_run import LANE, OWN_LOOP, OWN_LOOP_LANE, STOPPING, UNKEYED, WAYS, Way

pytestmark = pytest.mark.asyncio

COUNT: Final = 40
VALUES: Final = 3

KINDS: Final[dict[str, tuple[str, Callable[[], Any]]]] = {
    "map": (MSGPACK, lambda: {"n": 0}),
    "json": (JSON, lambda: {"n": [0]}),
    "bytearray": (OCTET_STREAM, lambda: bytearray(4)),
    "memoryview": (OCTET_STREAM, lambda: memoryview(bytearray(4))),
    "elements": (OCTET_STREAM, lambda: np.zeros(1, np.int32)),
    "array": (MSGPACK, lambda: np.zeros(3, np.int64)),
    "tensor": (TENSORS, lambda: np.zeros(3, np.int64)),
    "message": (PROTOBUF, lambda: GreetResponse(text="0")),
}
"""Something that can be changed, by name: the content type that carries it."""


def put(value: Any, number: int) -> None:
    """Changes it in place."""
    if isinstance(value, dict):
        if isinstance(value["n"], list):
            value["n"][0] = number
        else:
            value["n"] = number
    elif isinstance(value, GreetResponse):
        value.text = str(number)
    elif isinstance(value, np.ndarray):
        value[:] = number
    else:
        value[:] = number.to_bytes(4, "little")


def number_in(kind: str, payload: bytes) -> int:
    """What `put` put there."""
    content_type, _ = KINDS[kind]
    if content_type == OCTET_STREAM:
        return int.from_bytes(payload, "little")
    if content_type == PROTOBUF:
        message: GreetResponse = decoder(PROTOBUF, GreetResponse)(payload)
        return int(message.text)
    value = decode(content_type, payload)
    if isinstance(value, dict):
        ((_, value),) = value.items()
    return int(np.asarray(value).reshape(-1)[0])


@deployment(max_ongoing=512)
class Reuses:
    """Has one value for all calls, which each of them changes."""

    def __init__(self, kind: str) -> None:
        self.value = KINDS[kind][1]()
        self.count = 0

    def next(self) -> Any:
        self.count += 1
        put(self.value, self.count)
        return self.value

    async def quick(self, given: Any) -> Any:
        del given
        return self.next()

    async def waits(self, given: Any) -> Any:
        del given
        await asyncio.sleep(0)
        return self.next()

    async def some_wait(self, given: Any) -> Any:
        del given
        if self.count % 3 == 1:
            await asyncio.sleep(0)
        return self.next()

    def plain(self, given: Any) -> Any:
        del given
        return self.next()

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def together(self, given: list[Any]) -> list[Any]:
        return [self.next()] * len(given)

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    def together_in_a_thread(self, given: list[Any]) -> list[Any]:
        return [self.next()] * len(given)

    async def values(self, given: Any) -> AsyncIterator[Any]:
        del given
        for _ in range(VALUES):
            yield self.next()

    def plain_values(self, given: Any) -> Iterator[Any]:
        del given
        for _ in range(VALUES):
            yield self.next()


class ReusesMessage(Reuses):
    """The same for rpc-like calls: what they give is a message."""

    async def quick(self, given: GreetRequest) -> Any:
        return await super().quick(given)

    async def waits(self, given: GreetRequest) -> Any:
        return await super().waits(given)

    async def some_wait(self, given: GreetRequest) -> Any:
        return await super().some_wait(given)

    def plain(self, given: GreetRequest) -> Any:
        return super().plain(given)

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def together(self, given: list[GreetRequest]) -> list[Any]:
        return [self.next()] * len(given)

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    def together_in_a_thread(self, given: list[GreetRequest]) -> list[Any]:
        return [self.next()] * len(given)

    async def values(self, given: GreetRequest) -> AsyncIterator[Any]:
        async for value in super().values(given):
            yield value

    def plain_values(self, given: GreetRequest) -> Iterator[Any]:
        return super().plain_values(given)


def handler_of(kind: str) -> type[Reuses]:
    return ReusesMessage if KINDS[kind][0] == PROTOBUF else Reuses


async def outcomes(host: Hosting, way: Way, kind: str, method: str, **options: Any) -> list[Any]:
    """What calls of this method came to: results, or values."""
    content_type, _ = KINDS[kind]
    structured = content_type in {MSGPACK, JSON, TENSORS}
    given = np.ones((1, 1)) if content_type == TENSORS else 1
    payload = encode_arguments(content_type, (), {"given": given}) if structured else b""
    await way.execute(host, method, [payload] * COUNT, content_type=content_type, **options)
    assert not host.outbox.failures_of
    if options.get("streaming"):
        return [[number_in(kind, each) for each in values] for _, values in sorted(host.outbox.values_of.items())]
    return [number_in(kind, payload) for _, payload in sorted(host.outbox.results_of.items())]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("way", "method"),
    [
        *((way, method) for way in WAYS for method in ("quick", "waits", "some_wait")),
        *((way, "plain") for way in (LANE, STOPPING)),
    ],
    ids=str,
)
async def test_a_call_has_its_own_result(way: Way, method: str, kind: str) -> None:
    async with hosting(handler_of(kind), kind, own_loop=way.own_loop) as host:
        got = await outcomes(host, way, kind, method)
        assert sorted(got) == list(range(1, COUNT + 1))
        if way.key:
            assert got == sorted(got)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", [UNKEYED, LANE, OWN_LOOP], ids=str)
@pytest.mark.parametrize("method", ["together", "together_in_a_thread"])
async def test_a_batch_has_its_own_results(way: Way, method: str, kind: str) -> None:
    async with hosting(handler_of(kind), kind, own_loop=way.own_loop) as host:
        got = await outcomes(host, way, kind, method)
        assert got == [1 + index // 4 for index in range(COUNT)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", [LANE, OWN_LOOP_LANE], ids=str)
@pytest.mark.parametrize("method", ["values", "plain_values"])
async def test_each_value_is_sent_as_it_was_yielded(way: Way, method: str, kind: str) -> None:
    async with hosting(handler_of(kind), kind, own_loop=way.own_loop) as host:
        got = await outcomes(host, way, kind, method, streaming=True)
        assert got == [list(range(first, first + VALUES)) for first in range(1, COUNT * VALUES, VALUES)]


class ChangesAnother:
    """Its result, as it is read, changes the result of the call before."""

    def __init__(self) -> None:
        self.returned: list[dict[str, int]] = []

    async def quick(self, number: int) -> Any:
        self.returned.append({"n": number})
        return Result(self.returned)


class Result:
    """Encoded by `tolist`, as arrays of any library are."""

    def __init__(self, returned: list[dict[str, int]]) -> None:
        self.mine, self.all = returned[-1], returned

    def tolist(self) -> list[int]:
        got = [self.mine["n"]]
        for each in self.all:
            each["n"] = -1
        return got


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_result_is_read_before_the_next_call_runs(way: Way) -> None:
    async with hosting(ChangesAnother, own_loop=way.own_loop) as host:
        payloads = [encode_arguments(MSGPACK, (number,), {}) for number in range(COUNT)]
        await way.execute(host, "quick", payloads, content_type=MSGPACK)
        assert sorted(decode(MSGPACK, each)[0] for each in host.outbox.results_of.values()) == list(range(COUNT))


class Unsendable:
    """Its fifth result cannot be sent."""

    def __init__(self) -> None:
        self.count = 0

    async def quick(self) -> Any:
        self.count += 1
        return object() if self.count == 5 else self.count


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_result_that_cannot_be_sent_fails_its_own_call(way: Way) -> None:
    async with hosting(Unsendable, own_loop=way.own_loop) as host:
        await way.execute(host, "quick", [b"\x90"] * 5, content_type=MSGPACK)
        await way.execute(host, "quick", [b"\x90"] * 3, content_type=MSGPACK)
        assert sorted(decode(MSGPACK, each) for each in host.outbox.results_of.values()) == [1, 2, 3, 4, 6, 7, 8]
        (failure,) = host.outbox.failures_of.values()
        assert failure.executed is Executed.YES
        assert "the result cannot be sent" in failure.message
