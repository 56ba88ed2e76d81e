"""Batch methods: what they are given, and what becomes of what they return."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from slotmesh.codec import JSON, MSGPACK
from slotmesh.errors import Executed, Reason
from slotmesh.handlers import batch, deployment
from tests.support.wait import wait_until
from tests.unit.replica.hosting import hosting

pytestmark = pytest.mark.asyncio

together = batch(max_batch_size=4, batch_wait_timeout_s=0.02)


class Array:
    """As numpy's, as far as results go."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def tolist(self) -> list[Any]:
        return self._values


class Shared:
    def __init__(self) -> None:
        self.given: list[Any] = []
        self.gate = threading.Event()

    def answer(self, items: list[Any]) -> Any:
        self.given.append(items)
        match items[0]:
            case b"short":
                return items[1:]
            case b"long":
                return [*items, b"one more"]
            case b"none" | b"map":
                return {item: item for item in items} if items[0] == b"map" else None
            case b"some":
                return [ValueError(item.decode()) if b"bad" in item else item for item in items]
            case b"raise":
                raise ValueError("no good")
            case b"exit":
                raise SystemExit(1)
            case b"tuple":
                return tuple(items)
            case b"array":
                return Array([bytes(item) for item in items])
            case b"odd one":
                return [items[0], 5, *items[2:]]
            case _:
                return [bytes(item).upper() for item in items]


@deployment
class OnLoop(Shared):
    @together
    async def upper(self, items: list[bytes]) -> Any:
        await asyncio.sleep(0)
        return self.answer(items)

    @together
    async def scale(self, numbers: list[int], factors: list[int] | int = 2) -> list[int]:
        self.given.append((numbers, factors))
        if isinstance(factors, int):
            return [number * factors for number in numbers]
        return [number * factor for number, factor in zip(numbers, factors, strict=True)]


@deployment(max_ongoing=64)
class InThreads(Shared):
    @together
    def upper(self, items: list[bytes]) -> Any:
        return self.answer(items)

    @together
    def scale(self, numbers: list[int], factors: list[int] | int = 2) -> list[int]:
        self.given.append((numbers, factors))
        if isinstance(factors, int):
            return [number * factors for number in numbers]
        return [number * factor for number, factor in zip(numbers, factors, strict=True)]


both = pytest.mark.parametrize("handler", [OnLoop, InThreads])


@both
async def test_runs_become_batches(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("upper", [b"%c" % letter for letter in range(ord("a"), ord("k"))])
        await host.execute(run)
        assert host.results(run) == [payload.upper() for payload in host.payloads(run)]
        assert host.handler.given == [[b"a", b"b", b"c", b"d"], [b"e", b"f", b"g", b"h"], [b"i", b"j"]]
        assert host.engine.counters.batches == 3
        await wait_until(lambda: host.engine.scheduler.is_idle)


@both
async def test_calls_of_different_runs_and_lanes_share_a_batch(handler: type) -> None:
    async with hosting(handler) as host:
        runs = [
            host.run("upper", [b"a"]),
            host.run("upper", [b"b", b"c"], key="k"),
            host.run("upper", [b"d", b"e"]),
            host.run("upper", [b"f"], key="k"),
        ]
        await host.execute(*runs)
        sizes = [len(given) for given in host.handler.given]
        assert sum(sizes) == 6
        assert max(sizes) == 4
        assert [host.results(run) for run in runs] == [[b"A"], [b"B", b"C"], [b"D", b"E"], [b"F"]]


@both
@pytest.mark.parametrize(
    ("first", "message"),
    [
        (b"short", "upper was given 4 calls and returned a list of 3; it must return a list as long"),
        (b"long", "upper was given 4 calls and returned a list of 5; it must return a list as long"),
        (b"none", "upper was given 4 calls and returned a NoneType; it must return a list as long"),
        (b"map", "upper was given 4 calls and returned a dict; it must return a list as long"),
    ],
)
async def test_a_result_of_another_length_fails_the_whole_batch(handler: type, first: bytes, message: str) -> None:
    async with hosting(handler) as host:
        run = host.run("upper", [first, b"2", b"3", b"4", b"next"])
        outbox = await host.execute(run)
        assert host.results(run) == [None] * 4 + [b"NEXT"]
        failures = [outbox.failures_of[run.first + index] for index in range(4)]
        assert {(failure.reason, failure.executed, failure.message) for failure in failures} == {
            (Reason.BATCH_SIZE_MISMATCH, Executed.YES, message)
        }


@both
@pytest.mark.parametrize(("first", "message"), [(b"raise", "ValueError: no good"), (b"exit", "SystemExit: 1")])
async def test_an_exception_fails_its_batch_only(
    handler: type, first: bytes, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with hosting(handler) as host:
        run = host.run("upper", [first, b"2", b"3", b"4", b"next"])
        outbox = await host.execute(run)
        assert host.results(run) == [None] * 4 + [b"NEXT"]
        assert [outbox.failures_of[run.first + index].message for index in range(4)] == [message] * 4
        assert sum("handler raised" in record.getMessage() for record in caplog.records) == 1


@both
@pytest.mark.parametrize("no_reply", [False, True])
async def test_an_entry_that_is_an_exception_fails_its_call_only(handler: type, no_reply: bool) -> None:
    async with hosting(handler) as host:
        runs = [
            host.run("upper", payloads, no_reply=no_reply)
            for payloads in ([b"some", b"bad 1"], [b"bad 2"], [b"x", b"some", b"bad 3", b"y", b"bad 4"])
        ]
        runs.append(host.run("upper", [b"bad 5", b"some"]))
        outbox = await host.execute(*runs)
        assert host.engine.counters.failures == {Reason.HANDLER_ERROR: 4}
        assert host.results(runs[-1]) == [b"BAD 5", b"SOME"]
        if not no_reply:
            assert [host.results(run) for run in runs[:-1]] == [
                [b"some", None],
                [None],
                [b"x", b"some", None, b"y", None],
            ]
            messages = [failure.message for failure in outbox.failures_of.values()]
            assert messages == [f"ValueError: bad {number}" for number in (1, 2, 3, 4)]


@both
async def test_tuples_and_arrays_are_lists(handler: type) -> None:
    async with hosting(handler) as host:
        for first in (b"tuple", b"array"):
            run = host.run("upper", [first, b"x"])
            await host.execute(run)
            assert host.results(run) == [first, b"x"]


@both
async def test_a_result_that_cannot_be_sent_fails_its_call_only(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("upper", [b"odd one", b"2", b"3"])
        outbox = await host.execute(run)
        assert host.results(run) == [b"odd one", None, b"3"]
        assert outbox.failures_of[run.first + 1].message.startswith("the result cannot be sent")


@both
async def test_unsound_arguments_leave_the_others_their_batch(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("scale", [b"[1]", b'["x"]', b"[3]", b'{"number": 1}'], content_type=JSON)
        outbox = await host.execute(run)
        assert host.results(run) == [b"2", None, b"6", None]
        assert host.handler.given == [([1, 3], 2)]
        assert outbox.failures_of[run.first + 1].reason is Reason.BAD_ARGUMENTS
        assert outbox.failures_of[run.first + 1].executed is Executed.NO


@both
async def test_calls_with_other_arguments_get_an_invocation_of_their_own(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("scale", [b"[1]", b"[1, 5]", b"[2, 6]", b"[3]"], content_type=JSON)
        await host.execute(run)
        assert host.results(run) == [b"2", b"5", b"12", b"6"]
        assert host.handler.given == [([1], 2), ([1, 2], [5, 6]), ([3], 2)]


@both
async def test_named_arguments_become_named_lists(handler: type) -> None:
    async with hosting(handler) as host:
        payloads = [
            b'{"factors": 5, "numbers": 1}',
            b'{"factors": 6, "numbers": 2}',
            b'{"numbers": 3}',
            b'{"numbers": 4}',
        ]
        run = host.run("scale", payloads, content_type=JSON)
        await host.execute(run)
        assert host.results(run) == [b"5", b"12", b"6", b"8"]
        assert host.handler.given == [([1, 2], [5, 6]), ([3, 4], 2)]


@both
async def test_content_types_may_mix_in_a_batch(handler: type) -> None:
    async with hosting(handler) as host:
        runs = [host.run("scale", [b"[1]"], content_type=JSON), host.run("scale", [b"\x91\x02"], content_type=MSGPACK)]
        await host.execute(*runs)
        assert [host.results(run) for run in runs] == [[b"2"], [b"\x04"]]
        assert host.handler.given == [([1, 2], 2)]
