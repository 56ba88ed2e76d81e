"""`@deployment` and `@batch` leave a handler what it is, and refuse what cannot be meant."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import slotmesh
from slotmesh.handlers import BatchSettings, batch, deployment
from slotmesh.handlers.decorators import batch_settings, deployment_settings


def test_the_public_names_are_the_decorators() -> None:
    assert (slotmesh.deployment, slotmesh.batch) == (deployment, batch)


def test_a_decorated_class_is_the_same_class() -> None:
    class Model:
        pass

    assert deployment(Model) is Model
    assert deployment(max_ongoing=3)(Model) is Model
    assert deployment_settings(Model).max_ongoing == 3
    assert type(Model()).__name__ == "Model"


def test_a_subclass_has_the_settings_of_its_base() -> None:
    @deployment(max_ongoing=3, prefetch=2)
    class Base:
        pass

    class Derived(Base):
        pass

    assert deployment_settings(Derived).prefetch == 2


def test_a_batch_method_called_directly_takes_a_list() -> None:
    class Model:
        @batch(max_batch_size=2)
        def double(self, numbers: list[int]) -> list[int]:
            return [2 * number for number in numbers]

        @batch
        async def negate(self, numbers: list[int]) -> list[int]:
            return [-number for number in numbers]

    assert Model().double([1, 2, 3]) == [2, 4, 6]
    assert asyncio.run(Model().negate([1])) == [-1]


def test_a_batch_function_carries_its_settings() -> None:
    @batch(max_batch_size=7, batch_wait_timeout_s=1, max_concurrent_batches=2)
    def handle(items: list[int]) -> list[int]:
        return items

    settings = batch_settings(handle)
    assert settings is not None
    assert (settings.max_batch_size, settings.batch_wait_timeout_s, settings.max_concurrent_batches) == (7, 1, 2)
    assert settings.most_calls == 14
    assert batch_settings(lambda: None) is None


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: deployment(max_ongoing=0), ValueError, "max_ongoing must be 1 … 1,000,000, got 0"),
        (lambda: deployment(max_ongoing=1_000_001), ValueError, "got 1000001"),
        (lambda: deployment(max_ongoing=True), TypeError, "max_ongoing must be an integer, got True"),
        (lambda: deployment(max_ongoing="8"), TypeError, "got '8'"),  # type: ignore[call-overload]
        (lambda: deployment(prefetch=-1), ValueError, "prefetch must be 0"),
        (lambda: deployment(3), TypeError, "class or a function, got 3"),  # type: ignore[call-overload]
        (lambda: batch(max_batch_size=0), ValueError, "max_batch_size must be 1"),
        (lambda: batch(max_batch_size=2.5), TypeError, "got 2.5"),  # type: ignore[call-overload]
        (lambda: batch(max_concurrent_batches=0), ValueError, "max_concurrent_batches"),
        (lambda: batch(batch_wait_timeout_s=-1), ValueError, "batch_wait_timeout_s must be finite and not neg"),
        (lambda: batch(batch_wait_timeout_s=float("nan")), ValueError, "got nan"),
        (lambda: batch(batch_wait_timeout_s="10ms"), TypeError, "got '10ms'"),  # type: ignore[call-overload]
        (lambda: batch(batch_wait_timeout_s=True), TypeError, "got True"),
        (lambda: batch(staticmethod(len)), TypeError, "below @staticmethod"),
        (lambda: batch(object), TypeError, "@batch goes on a function"),
    ],
)
def test_wrong_values_are_refused_with_the_value(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        make()


def test_a_batch_method_may_yield() -> None:
    @batch(max_batch_size=3)
    def pairs(items: list[int]) -> Iterator[list[int]]:
        yield items
        yield [2 * item for item in items]

    assert batch_settings(pairs) == BatchSettings(max_batch_size=3)
    assert list(pairs([1, 2])) == [[1, 2], [2, 4]]
