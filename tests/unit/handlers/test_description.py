"""What is read off a handler: methods, kinds, and the numbers that follow from them."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from slotmesh.handlers import CALL, MethodKind, batch, deployment, describe


class Base:
    async def inherited(self) -> None: ...

    async def overridden(self) -> None: ...


@deployment
class Mixed(Base):
    attribute = 3

    def __init__(self) -> None:
        raise AssertionError("a description constructs nothing")

    def overridden(self) -> None:  # type: ignore[override]
        ...

    async def _private(self) -> None: ...

    @property
    def a_property(self) -> int:
        raise AssertionError("a description reads no property")

    @functools.cached_property
    def a_cached_property(self) -> int:
        raise AssertionError("a description reads no cached property")

    @staticmethod
    async def a_static() -> None: ...

    @classmethod
    def a_class_method(cls) -> None: ...

    async def streams(self) -> AsyncIterator[int]:
        yield 1

    def streams_in_thread(self) -> Iterator[int]:
        yield 1

    class Inner: ...

    async def reconfigure(self, config: Any) -> None: ...

    async def check_health(self) -> None: ...


def test_public_methods_are_found_with_their_kinds() -> None:
    kinds = {name: method.kind for name, method in describe(Mixed).methods.items()}
    assert kinds == {
        "inherited": MethodKind.ASYNC,
        "overridden": MethodKind.DEF,
        "a_static": MethodKind.ASYNC,
        "a_class_method": MethodKind.DEF,
        "streams": MethodKind.ASYNC_GENERATOR,
        "streams_in_thread": MethodKind.GENERATOR,
    }


def test_the_metaclass_call_is_no_method() -> None:
    class Called:
        async def __call__(self) -> None: ...

    assert CALL not in describe(Mixed).methods
    assert list(describe(Called).methods) == [CALL]


def test_a_function_is_its_own_only_method() -> None:
    async def echo(payload: bytes) -> bytes:
        return payload

    described = describe(deployment(max_ongoing=3)(echo))
    assert (described.name, list(described.methods), described.max_ongoing) == ("echo", [CALL], 3)


def test_a_wrapped_method_keeps_its_kind() -> None:
    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    class Wrapped:
        @plain
        def method(self) -> None: ...

    assert describe(Wrapped).methods["method"].kind is MethodKind.DEF


async def yields_on_loop(self: Any) -> AsyncIterator[int]:
    yield 1


def yields_in_thread(self: Any) -> Iterator[int]:
    yield 1


def handler(*kinds: str, size: int = 10, concurrent: int = 1) -> type:
    async def on_loop(self: Any, items: list[int]) -> list[int]:
        return items

    def in_thread(self: Any, items: list[int]) -> list[int]:
        return items

    decorated = batch(max_batch_size=size, max_concurrent_batches=concurrent)
    methods = {
        "async": on_loop,
        "def": in_thread,
        "batch": decorated(on_loop),
        "async yield": yields_on_loop,
        "yield": yields_in_thread,
    }
    return type("Handler", (), {f"m{index}": methods[kind] for index, kind in enumerate(kinds)})


@pytest.mark.parametrize(
    ("kinds", "size", "concurrent", "max_ongoing", "prefetch"),
    [
        (("async",), 10, 1, 512, 0),
        (("def",), 10, 1, 8, 0),
        (("async", "def"), 10, 1, 8, 0),
        (("async", "async yield"), 10, 1, 512, 0),
        (("async", "yield"), 10, 1, 8, 0),
        (("batch",), 10, 1, 512, 10),
        (("batch", "def"), 10, 1, 10, 10),
        (("batch", "def"), 32, 4, 128, 32),
        (("batch",), 1000, 2, 2000, 1000),
    ],
)
def test_defaults_follow_from_the_methods(
    kinds: tuple[str, ...], size: int, concurrent: int, max_ongoing: int, prefetch: int
) -> None:
    described = describe(handler(*kinds, size=size, concurrent=concurrent))
    assert (described.max_ongoing, described.prefetch) == (max_ongoing, prefetch)


def test_what_the_decorator_says_goes_before_the_defaults() -> None:
    described = describe(deployment(max_ongoing=4, prefetch=1)(handler("batch", size=100)))
    assert (described.max_ongoing, described.prefetch) == (4, 1)


def test_a_loop_of_its_own_is_a_choice() -> None:
    described = describe(handler("async"))
    assert (described.own_loop, described.blocked_after_s) == (False, 0.5)
    described = describe(deployment(own_loop=True, blocked_after_s=0)(handler("async")))
    assert (described.own_loop, described.blocked_after_s) == (True, 0)


def test_as_json_holds_plain_values() -> None:
    described = describe(handler("batch", "def", size=3))
    assert described.as_json() == {
        "name": "Handler",
        "max_ongoing": 8,
        "prefetch": 3,
        "own_loop": False,
        "health_check_period_s": 10.0,
        "health_check_timeout_s": 30.0,
        "methods": {
            "m0": {
                "kind": "batch",
                "batch": {
                    "kind": "async",
                    "max_batch_size": 3,
                    "batch_wait_timeout_s": 0.01,
                    "max_concurrent_batches": 1,
                },
            },
            "m1": {"kind": "def"},
        },
    }


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="nothing to call"):
        describe(type("Empty", (), {}))
    with pytest.raises(TypeError, match="class or a function"):
        describe(3)  # type: ignore[arg-type]


class NeedsMore:
    def work(self) -> None: ...

    def check_health(self, patience: float) -> None: ...


class NeedsNoConfig:
    def work(self) -> None: ...

    async def reconfigure(self) -> None: ...


class TakesAll:
    def work(self) -> None: ...

    def reconfigure(self, *args: object) -> None: ...

    @staticmethod
    def check_health() -> None: ...

    @classmethod
    def on_drain(cls, more: int = 0) -> None: ...


def test_what_the_replica_calls_must_take_what_it_gives() -> None:
    with pytest.raises(TypeError, match=r"NeedsMore.check_health .*'patience'.*`def check_health\(self\)`"):
        describe(NeedsMore)
    with pytest.raises(TypeError, match=r"NeedsNoConfig.reconfigure .*`def reconfigure\(self, user_config\)`"):
        describe(NeedsNoConfig)
    assert list(describe(TakesAll).methods) == ["work"]
