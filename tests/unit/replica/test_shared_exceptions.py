"""Exceptions that several calls raise keep nothing of a call."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from slotmesh.codec import JSON, MSGPACK, encode_arguments
from slotmesh.handlers import batch, deployment
from slotmesh.user_code import forget_call
from tests.support.tiers import long
from tests.unit.replica.hosting import hosting
from tests.unit.replica.ways_to_run import LANE, OWN_LOOP, OWN_LOOP_LANE, UNKEYED, WAYS, Way

COUNT: Final = 20

EXTRA: Final = ValueError("extra")


@dataclass(frozen=True)
class Frozen(Exception):
    """Of a class whose attributes cannot be set."""

    text: str = "frozen"


class Slotted(ValueError):
    """Of a class without a dict of its own."""

    __slots__ = ()


SHARED: Final[dict[str, Callable[[], BaseException]]] = {
    "plain": lambda: ValueError("shared"),
    "frozen": Frozen,
    "slotted": lambda: Slotted("shared"),
    "group": lambda: ExceptionGroup("shared", [ValueError("one"), ExceptionGroup("two", [KeyError("three")])]),
    "exits": lambda: SystemExit(3),
    "cancelled": lambda: asyncio.CancelledError("shared"),
    "cause": lambda: _with_cause(ValueError("shared")),
}


MAIN: Final = ("plain", "frozen", "group")
"""Of which all ways of running are tried each time."""


def _with_cause(error: BaseException) -> BaseException:
    error.__cause__ = EXTRA
    return error


class Argument:
    """Something large that a call has."""


class Unsendable:
    """Raises as it is read."""

    def __init__(self, error: BaseException, argument: Argument) -> None:
        self.error, self.argument = error, argument

    def tolist(self) -> Any:
        raise self.error


@deployment(max_ongoing=512)
class Raises:
    """Every call raises the same exception; what it has is watched."""

    def __init__(self, kind: str) -> None:
        self.error = SHARED[kind]()
        self.arguments: list[weakref.ref[Argument]] = []

    def _argument(self) -> Argument:
        argument = Argument()
        self.arguments.append(weakref.ref(argument))
        return argument

    def _raise(self, argument: Argument) -> None:
        try:
            raise KeyError(id(argument))
        except KeyError:
            raise self.error  # noqa: B904 - what is being handled becomes the context of what is shared

    def _raise_from(self, argument: Argument) -> None:
        try:
            self._raise(argument)
        except BaseException as error:  # noqa: BLE001 - of whichever class it is
            raise self.error from EXTRA if error is EXTRA else LookupError(id(argument))

    async def quick(self, _number: int) -> None:
        self._raise(self._argument())

    async def waits(self, _number: int) -> None:
        argument = self._argument()
        await asyncio.sleep(0)
        self._raise_from(argument)

    def plain(self, _number: int) -> None:
        self._raise(self._argument())

    async def unsendable(self, _number: int) -> Any:
        return Unsendable(self.error, self._argument())

    def plain_unsendable(self, _number: int) -> Any:
        return Unsendable(self.error, self._argument())

    async def in_a_task_group(self, _number: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.quick(0))

    async def values(self, _number: int) -> AsyncIterator[int]:
        argument = self._argument()
        yield 1
        self._raise(argument)

    def plain_values(self, _number: int) -> Iterator[int]:
        argument = self._argument()
        yield 1
        self._raise(argument)

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def together(self, numbers: list[int]) -> list[int]:
        self._raise(self._argument())
        return numbers

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    def together_in_a_thread(self, numbers: list[int]) -> list[int]:
        self._raise(self._argument())
        return numbers

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def some(self, numbers: list[int]) -> list[Any]:
        entries: list[Any] = []
        for _ in numbers:
            try:
                self._raise(self._argument())
            except BaseException as error:  # noqa: BLE001 - it is what the call has raised
                entries.append(error)
        return entries


CELLS: Final = [
    *((way, method) for way in WAYS for method in ("quick", "waits", "unsendable")),
    *(
        (way, method)
        for way in (UNKEYED, LANE)
        for method in ("plain", "plain_unsendable", "plain_values", "together_in_a_thread")
    ),
    *((way, method) for way in (UNKEYED, OWN_LOOP) for method in ("together", "some")),
    *((way, "values") for way in (UNKEYED, LANE, OWN_LOOP, OWN_LOOP_LANE)),
]


def links_of(error: BaseException) -> list[Any]:
    """What Python keeps of raising it, and its members."""
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [
        *(error.__traceback__, error.__cause__, error.__context__),
        *(link for member in members for link in links_of(member)),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [*MAIN, *(long(kind) for kind in SHARED if kind not in MAIN)])
@pytest.mark.parametrize(("way", "method"), CELLS, ids=str)
async def test_nothing_of_a_call_stays_on_what_it_has_raised(
    way: Way, method: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # what a log keeps is not what this is about
    async with hosting(Raises, kind, own_loop=way.own_loop) as host:
        payloads = [encode_arguments(MSGPACK, (number,), {}) for number in range(COUNT)]
        await way.execute(host, method, payloads, content_type=MSGPACK)
        assert len(host.outbox.failures_of) == COUNT
        gc.collect()
        assert set(links_of(host.handler.error)) == {None}
        assert host.handler.arguments
        assert [argument for argument in host.handler.arguments if argument() is not None] == []


@pytest.mark.asyncio
async def test_members_of_a_task_group_keep_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with hosting(Raises, "plain") as host:
        await UNKEYED.execute(host, "in_a_task_group", [b"[1]"] * COUNT, content_type=JSON)
        gc.collect()
        assert set(links_of(host.handler.error)) == {None}
        assert [argument for argument in host.handler.arguments if argument() is not None] == []


ERROR_OF_DECODING: Final = ValueError("not so")


@dataclass
class Refuses:
    """Does not like what it is given."""

    text: str

    def __post_init__(self) -> None:
        raise ERROR_OF_DECODING


@deployment(max_ongoing=512)
class TakesRefuses:
    async def quick(self, _given: Refuses) -> None: ...

    def plain(self, _given: Refuses) -> None: ...

    async def values(self, _given: Refuses) -> AsyncIterator[int]:
        yield 1

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def together(self, _given: list[Refuses]) -> list[int]:
        return []

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    def together_in_a_thread(self, _given: list[Refuses]) -> list[int]:
        return []

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0, batch_size_fn=lambda _given: 1)
    async def weighed(self, _given: list[Refuses]) -> list[int]:
        return []


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["quick", "plain", "values", "together", "together_in_a_thread", "weighed"])
async def test_nothing_stays_on_what_was_raised_for_an_argument(method: str) -> None:
    async with hosting(TakesRefuses) as host:
        await UNKEYED.execute(host, method, [b'[{"text": "secret"}]'] * COUNT, content_type=JSON)
        assert len(host.outbox.failures_of) == COUNT
        assert links_of(ERROR_OF_DECODING) == [None, None, None]


@pytest.mark.asyncio
async def test_the_log_has_the_traceback_of_its_own_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with hosting(Raises, "plain") as host:
        for method in ("quick", "waits", "plain"):
            await UNKEYED.execute(host, method, [b"[1]"], content_type=JSON)
        texts = [
            record.exc_text or logging.Formatter().formatException(record.exc_info)
            for record in caplog.records
            if record.exc_info
        ]
        assert [text.count("in quick") for text in texts] == [1, 0, 0]
        assert [text.count("in waits") for text in texts] == [0, 1, 0]
        assert [text.count("in plain") for text in texts] == [0, 0, 1]


def test_chains_with_circles_are_taken_apart_and_others_stay_as_they_are() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    two.__suppress_context__ = True
    one.add_note("a note of the user's")
    with contextlib.suppress(ValueError):
        raise one
    forget_call(one)
    assert links_of(one) == links_of(two) == [None, None, None]
    assert (one.args, one.__notes__) == (("one",), ["a note of the user's"])
    assert not two.__suppress_context__
