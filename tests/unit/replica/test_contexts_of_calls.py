"""Each call, and each batch, has a context of its own: nothing that one sets in it is seen by another."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from opentelemetry import baggage
from opentelemetry import context as otel_context

import slotmesh
import slotmesh.testing
from slotmesh.codec import JSON, MSGPACK, decode, encode_arguments
from slotmesh.handlers import batch, deployment
from tests.unit.replica.hosting import hosting
from tests.unit.replica.ways_to_run import LANE, OWN_LOOP, OWN_LOOP_LANE, UNKEYED, WAYS, Way

pytestmark = pytest.mark.asyncio

COUNT: Final = 24
UNSET: Final = "unset"
WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default=UNSET)

WHERE: Final = ("variable", "decimal", "telemetry")
"""What belongs to a context."""


def exchange(where: str, name: str) -> str:
    """Sets it to the name, and returns what it was."""
    if where == "variable":
        before = WHO.get()
        WHO.set(name)
    elif where == "decimal":
        numbers = decimal.getcontext()
        before = UNSET if numbers.prec == decimal.DefaultContext.prec else str(numbers.prec)
        numbers.prec = 1000 + int(name)
    else:
        before = str(baggage.get_baggage("who") or UNSET)
        otel_context.attach(baggage.set_baggage("who", name))
    return before


@dataclass
class Marked:
    """Sets the variable as it is decoded."""

    name: str

    def __post_init__(self) -> None:
        self.before = exchange("variable", f"decoded {self.name}")


class Answer:
    """Sets the variable as it is encoded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def tolist(self) -> list[str]:
        return [exchange("variable", f"encoded {self.name}")]


def weight(name: str) -> float:
    assert exchange("variable", f"weighed {name}") == UNSET
    return 1.0


@deployment(max_ongoing=512)
class Sets:
    """Every method returns what it found, and leaves its own name."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[str]] = []

    async def quick(self, where: str, name: str) -> str:
        return exchange(where, name)

    async def waits(self, where: str, name: str) -> str:
        before = exchange(where, name)
        await asyncio.sleep(0)
        assert exchange(where, name).endswith(name)
        return before

    async def some_wait(self, where: str, name: str) -> str:
        return await (self.waits if int(name) % 3 == 1 else self.quick)(where, name)

    async def raises(self, where: str, name: str) -> str:
        before = exchange(where, name)
        if int(name) % 2:
            raise ValueError(before)
        return before

    async def starts_task(self, where: str, name: str) -> str:
        before = exchange(where, name)
        task = asyncio.ensure_future(self.quick(where, name))
        self.tasks.append(task)
        assert (await task).endswith(name)
        return before

    def plain(self, where: str, name: str) -> str:
        return exchange(where, name)

    async def decodes(self, marked: Marked) -> Any:
        assert WHO.get() == f"decoded {marked.name}"
        return marked.before

    def plain_decodes(self, marked: Marked) -> Any:
        assert WHO.get() == f"decoded {marked.name}"
        return marked.before

    async def encodes(self, name: str) -> Any:
        return Answer(name)

    def plain_encodes(self, name: str) -> Any:
        return Answer(name)

    async def values(self, where: str, name: str) -> AsyncIterator[str]:
        yield exchange(where, name)
        for _ in range(3):
            await asyncio.sleep(0)
            assert exchange(where, name).endswith(name)
            yield UNSET

    def plain_values(self, where: str, name: str) -> Iterator[str]:
        yield exchange(where, name)
        for _ in range(3):
            assert exchange(where, name).endswith(name)
            yield UNSET

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def together(self, where: list[str], names: list[str]) -> list[str]:
        return [exchange(where[0], names[0])] * len(names)

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def together_waiting(self, where: list[str], names: list[str]) -> list[str]:
        before = exchange(where[0], names[0])
        await asyncio.sleep(0)
        assert exchange(where[0], names[0]).endswith(names[0])
        return [before] * len(names)

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    def together_in_a_thread(self, where: list[str], names: list[str]) -> list[str]:
        return [exchange(where[0], names[0])] * len(names)

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def together_values(self, where: list[str], names: list[str]) -> AsyncIterator[list[str]]:
        yield [exchange(where[0], names[0])] * len(names)
        assert exchange(where[0], names[0]).endswith(names[0])

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0, batch_size_fn=weight)
    async def weighed(self, names: list[str]) -> list[str]:
        return [WHO.get()] * len(names)

    async def asks(self, where: str, name: str) -> str:
        before = exchange(where, name)
        assert slotmesh.context().metadata["who"] == "me"
        return before


SINGLE: Final = ("quick", "waits", "some_wait", "starts_task", "raises", "asks")
CELLS: Final = [
    *((way, method) for way in WAYS for method in SINGLE),
    *((way, method) for way in (UNKEYED, LANE) for method in ("plain", "plain_values", "together_in_a_thread")),
    *((way, "values") for way in (UNKEYED, LANE, OWN_LOOP, OWN_LOOP_LANE)),
    *(
        (way, method)
        for way in (UNKEYED, LANE, OWN_LOOP)
        for method in ("together", "together_waiting", "together_values")
    ),
]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("way", "method"), CELLS, ids=str)
async def test_no_call_sees_what_another_has_set(way: Way, method: str, where: str) -> None:
    async with hosting(Sets, own_loop=way.own_loop) as host:
        for _ in range(2):  # threads and runners are warm in the second round
            payloads = [encode_arguments(JSON, (where, str(index)), {}) for index in range(COUNT)]
            await way.execute(host, method, payloads, content_type=JSON, metadata={"who": "me"})
        assert len(host.outbox.order) == 2 * COUNT
        failures = {failure.message for failure in host.outbox.failures_of.values()}
        assert failures == ({f"ValueError: {UNSET}"} if method == "raises" else set())
        for payload in host.outbox.results_of.values():
            found = decode(JSON, payload)
            assert set(found if isinstance(found, list) else [found]) == {UNSET}


@pytest.mark.parametrize(
    ("way", "method"),
    [
        *((way, method) for way in WAYS for method in ("decodes", "encodes")),
        *((way, method) for way in (UNKEYED, LANE) for method in ("plain_decodes", "plain_encodes")),
    ],
    ids=str,
)
async def test_arguments_and_results_are_read_in_the_context_of_their_call(way: Way, method: str) -> None:
    async with hosting(Sets, own_loop=way.own_loop) as host:
        given: list[Any] = [{"name": str(index)} if "decodes" in method else str(index) for index in range(COUNT)]
        payloads = [encode_arguments(MSGPACK, (each,), {}) for each in given]
        await way.execute(host, method, payloads, content_type=MSGPACK)
        assert not host.outbox.failures_of
        found = [decode(MSGPACK, payload) for payload in host.outbox.results_of.values()]
        assert found == [[UNSET] if "encodes" in method else UNSET] * COUNT


async def test_calls_are_weighed_in_contexts_of_their_own() -> None:
    async with hosting(Sets) as host:
        payloads = [encode_arguments(JSON, (str(index),), {}) for index in range(COUNT)]
        await UNKEYED.execute(host, "weighed", payloads, content_type=JSON)
        assert set(host.outbox.results_of.values()) == {f'"{UNSET}"'.encode()}
        assert WHO.get() == UNSET


class Constructed:
    """Sets the variable as it is constructed."""

    def __init__(self) -> None:
        WHO.set("constructor")

    async def quick(self) -> str:
        return WHO.get()

    def plain(self) -> str:
        return WHO.get()


async def test_calls_start_from_the_context_in_which_the_replica_was_started() -> None:
    WHO.set("process")
    async with slotmesh.testing.handler(Constructed) as constructed:
        assert await constructed.quick() == await constructed.plain() == "process"
