"""Methods that are `async def`, or yield, below a decorator that is not: each way to write one, by each executor."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, ClassVar

import pytest

import slotmesh
from replica_service.shell.handler.handler_loop import OwnLoop, SharedLoop
from replica_service.shell.handler.hooks import Hook, Hooks
from slotmesh.codec import JSON, MSGPACK, OCTET_STREAM, decode, encode_arguments
from slotmesh.handlers import MethodKind, describe
from tests.unit.replica.hosting import hosting


def plain(function: Any) -> Any:
    """A decorator as most are written: a `def` that passes on what it gets."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def collecting(function: Any) -> Any:
    """A decorator around a generator function that returns a list."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return list(function(*args, **kwargs))

    return wrapper


def cached(function: Any) -> Any:
    """A decorator around an `async def` that sometimes has the value itself."""
    known: dict[Any, Any] = {}

    @functools.wraps(function)
    def wrapper(self: Any, item: Any) -> Any:
        if (id(self), item) in known:
            return item
        known[id(self), item] = item
        return function(self, item)

    return wrapper


class Decorator:
    """A decorator that is a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __get__(self, instance: Any, owner: type) -> Any:
        return functools.partial(self, instance)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


class Soon:
    """An awaitable that is no coroutine."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        return self.value


@slotmesh.deployment(max_ongoing=4)
class Handler:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.threads: set[int] = set()

    async def native(self, item: Any) -> Any:
        await asyncio.sleep(0)
        self.seen.append(item)
        self.threads.add(threading.get_ident())
        return item

    decorated = plain(native)
    twice = plain(plain(native))
    sometimes = cached(native)
    by_class = Decorator(native)
    through_partial = functools.partialmethod(native)
    decorated_partial = plain(functools.partial(native))

    def declared(self, item: Any) -> Awaitable[Any]:
        return self.native(item)

    def undeclared(self, item: Any):  # type: ignore[no-untyped-def]  # nothing shows that it returns a coroutine
        return self.native(item)

    def soon(self, item: Any):  # type: ignore[no-untyped-def]  # as above
        self.seen.append(item)
        return Soon(item)

    @plain
    @slotmesh.batch(max_batch_size=8)
    async def batch_below(self, items: list[Any]) -> list[Any]:
        return [await self.native(item) for item in items]

    @slotmesh.batch(max_batch_size=8)
    @plain
    async def batch_above(self, items: list[Any]) -> list[Any]:
        return [await self.native(item) for item in items]

    @slotmesh.batch(max_batch_size=8)
    def batch_undeclared(self, items: list[Any]):  # type: ignore[no-untyped-def]  # as above
        return self.batch_above(items)

    async def raises(self, item: Any) -> Any:
        await asyncio.sleep(0)
        raise LookupError(f"no {item!r}")

    decorated_raises = plain(raises)

    def undeclared_raises(self, item: Any):  # type: ignore[no-untyped-def]  # as above
        return self.raises(item)


ONE_RESULT = [
    "native",
    "decorated",
    "twice",
    "sometimes",
    "by_class",
    "through_partial",
    "decorated_partial",
    "declared",
    "undeclared",
    "soon",
    "batch_below",
    "batch_above",
    "batch_undeclared",
]
IN_THREADS = {"undeclared", "soon", "batch_undeclared"}
PAYLOADS = {
    MSGPACK: [encode_arguments(MSGPACK, (item,), {}) for item in ("a", "b")],
    JSON: [encode_arguments(JSON, (item,), {}) for item in ("a", "b")],
    OCTET_STREAM: [b"a", b"b"],
}


@pytest.mark.asyncio
@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("content_type", list(PAYLOADS))
@pytest.mark.parametrize("method", ONE_RESULT)
async def test_its_result_is_that_of_the_coroutine(method: str, content_type: str, key: str, own_loop: bool) -> None:
    async with hosting(Handler, own_loop=own_loop) as host:
        run = host.run(method, PAYLOADS[content_type], key=key, content_type=content_type)
        outbox = await host.execute(run)
        assert outbox.failures_of == {}
        results = [decode(content_type, payload or b"") for payload in host.results(run)]
        assert results == ([b"a", b"b"] if content_type == OCTET_STREAM else ["a", "b"])
        assert len(host.handler.threads) <= 1, "all of it runs on the loop of the handler"
        if not own_loop:
            assert host.handler.threads <= {threading.get_ident()}


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ONE_RESULT)
async def test_it_runs_without_a_reply_too(method: str) -> None:
    async with hosting(Handler) as host:
        await host.execute(host.run(method, PAYLOADS[MSGPACK], content_type=MSGPACK, no_reply=True))
        assert sorted(host.handler.seen) == ["a", "b"]


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["decorated_raises", "undeclared_raises"])
async def test_what_the_coroutine_raises_is_what_the_method_raised(method: str) -> None:
    async with hosting(Handler) as host:
        run = host.run(method, PAYLOADS[MSGPACK][:1], content_type=MSGPACK)
        outbox = await host.execute(run)
        assert "LookupError: no 'a'" in outbox.failures_of[run.first].message


def test_the_kind_is_known_at_start() -> None:
    methods = describe(Handler).methods
    kinds = {name: methods[name].kind for name in ONE_RESULT}
    assert {name for name, kind in kinds.items() if kind is MethodKind.DEF} == IN_THREADS
    assert {kind for name, kind in kinds.items() if name not in IN_THREADS} == {MethodKind.ASYNC}


@slotmesh.deployment(max_ongoing=4)
class Yielding:
    async def native(self, count: int) -> AsyncIterator[int]:
        for value in range(count):
            yield value

    def threaded(self, count: int) -> Iterator[int]:
        yield from range(count)

    decorated = plain(native)
    decorated_threaded = plain(threaded)
    collected = collecting(threaded)

    def declared(self, count: int) -> AsyncIterator[int]:
        return self.native(count)

    async def awaited(self, count: int) -> AsyncIterator[int]:
        return self.native(count)

    def declared_threaded(self, count: int) -> Iterator[int]:
        return iter(range(count))

    async def awaited_iterator(self, count: int) -> Iterator[int]:
        return iter(range(count))

    @plain
    @slotmesh.batch(max_batch_size=4)
    async def batch_below(self, counts: list[int]) -> AsyncIterator[list[int]]:
        for value in range(counts[0]):
            yield [value for _ in counts]

    @slotmesh.batch(max_batch_size=4)
    def batch_declared(self, counts: list[int]) -> Iterator[list[int]]:
        return ([value for _ in counts] for value in range(counts[0]))

    @plain
    @contextlib.contextmanager
    def no_iterator(self, count: int) -> Iterator[int]:
        yield count


@pytest.mark.asyncio
@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("method", [name for name in vars(Yielding) if not name.startswith("_") and "no_" not in name])
async def test_its_values_are_those_of_the_generator(method: str, own_loop: bool) -> None:
    assert describe(Yielding).methods[method].kind.yields
    async with hosting(Yielding, own_loop=own_loop) as host:
        run = host.run(method, [encode_arguments(MSGPACK, (3,), {})] * 2, content_type=MSGPACK)
        outbox = await host.execute(run)
        assert outbox.failures_of == {}
        assert [decode(MSGPACK, payload or b"") for payload in host.results(run)] == [[0, 1, 2]] * 2


@pytest.mark.asyncio
async def test_a_generator_function_that_returns_something_else_says_so() -> None:
    async with hosting(Yielding) as host:
        run = host.run("no_iterator", [encode_arguments(MSGPACK, (3,), {})], content_type=MSGPACK)
        outbox = await host.execute(run)
        assert "cannot be iterated over" in outbox.failures_of[run.first].message


class WithHooks:
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def _note(self, name: str) -> bool:
        await asyncio.sleep(0)
        self.calls.append(name)
        return False

    @plain
    async def check_health(self) -> bool:
        return await self._note("check_health")

    def reconfigure(self, user_config: Any) -> Any:
        return self._note(user_config)

    def __call__(self) -> None: ...


@pytest.mark.asyncio
@pytest.mark.parametrize("own_loop", [False, True])
async def test_hooks_are_awaited(own_loop: bool) -> None:
    loop = OwnLoop() if own_loop else SharedLoop()
    try:
        handler = WithHooks()
        describe(WithHooks)
        hooks = Hooks(handler, loop)
        assert await hooks.start(Hook.CHECK_HEALTH).ended is False
        assert await hooks.start(Hook.RECONFIGURE, "reconfigure").ended is False
        assert handler.calls == ["check_health", "reconfigure"]
    finally:
        await loop.close()


def test_a_hook_that_yields_is_refused_at_start() -> None:
    class Handler:
        async def check_health(self) -> AsyncIterator[bool]:
            yield True

        def __call__(self) -> None: ...

    with pytest.raises(TypeError, match=r"Handler\.check_health .* must return"):
        describe(Handler)


@pytest.mark.asyncio
async def test_single_items_reach_a_batch_method_below_a_decorator() -> None:
    class Handler:
        batches: ClassVar[list[int]] = []

        @slotmesh.batch(max_batch_size=4, batch_wait_timeout_s=10.0)
        @plain
        async def both(self, items: list[int]) -> list[int]:
            self.batches.append(len(items))
            return [2 * item for item in items]

        async def __call__(self, item: int) -> int:
            doubled: int = await self.both(item)
            return doubled

    async with hosting(Handler) as host:
        run = host.run("", [encode_arguments(MSGPACK, (item,), {}) for item in range(4)], content_type=MSGPACK)
        await host.execute(run)
        assert [decode(MSGPACK, payload or b"") for payload in host.results(run)] == [0, 2, 4, 6]
        assert Handler.batches == [4]


@pytest.mark.asyncio
async def test_a_decorator_around_a_batch_method_sees_its_batches() -> None:
    sizes: list[int] = []

    def counting(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(self: Any, items: list[int]) -> Any:
            sizes.append(len(items))
            return function(self, items)

        return wrapper

    class Handler:
        @counting
        @slotmesh.batch(max_batch_size=4, batch_wait_timeout_s=10.0)
        async def both(self, items: list[int]) -> list[int]:
            return items

    async with hosting(Handler) as host:
        await host.execute(host.run("both", [encode_arguments(MSGPACK, (1,), {})] * 4, content_type=MSGPACK))
        assert sizes == [4]
