"""`@deployment` and `@batch` leave a handler what it is, and refuse what cannot be meant."""

from __future__ import annotations

import asyncio
import inspect
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


def test_sizes_may_be_floats_that_are_whole_numbers_and_getters_tell_what_is_in_force() -> None:
    @batch(max_batch_size=7.0, max_concurrent_batches=2.0)
    def handle(items: list[int]) -> list[int]:
        return items

    settings = batch_settings(handle)
    assert settings is not None
    assert [type(each) for each in (settings.max_batch_size, settings.max_concurrent_batches)] == [int, int]
    assert (handle.get_max_batch_size(), handle.get_max_concurrent_batches()) == (7, 2)
    assert handle.get_batch_wait_timeout_s() == 0.01
    handle.set_max_batch_size(8.0)
    handle.set_max_concurrent_batches(3)
    handle.set_batch_wait_timeout_s(1)
    now = handle.get_max_batch_size(), handle.get_max_concurrent_batches(), handle.get_batch_wait_timeout_s()
    assert now == (8, 3, 1)
    assert type(handle.get_max_batch_size()) is int


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: deployment(max_ongoing=0), ValueError, "max_ongoing must be 1 … 1,000,000, got 0"),
        (lambda: deployment(max_ongoing=1_000_001), ValueError, "got 1000001"),
        (lambda: deployment(max_ongoing=True), TypeError, "max_ongoing must be an integer, got True"),
        (lambda: deployment(max_ongoing="8"), TypeError, "got '8'"),  # type: ignore[call-overload]
        (lambda: deployment(prefetch=-1), ValueError, "prefetch must be 0"),
        (lambda: deployment(health_check_period_s=0), ValueError, "health_check_period_s must be finite and at least"),
        (lambda: deployment(health_check_timeout_s=float("inf")), ValueError, "got inf"),
        (lambda: deployment(health_check_period_s=10**400), ValueError, "health_check_period_s must be finite"),
        (lambda: deployment(health_check_timeout_s="1s"), TypeError, "must be a number of seconds, got '1s'"),  # type: ignore[call-overload]
        (lambda: deployment(own_loop=1), TypeError, "own_loop must be True or False, got 1"),  # type: ignore[call-overload]
        (lambda: deployment(blocked_after_s=0.04), ValueError, "blocked_after_s must be 0.05 … 3,600.0 seconds, or 0"),
        (lambda: deployment(blocked_after_s=float("nan")), ValueError, "got nan"),
        (lambda: deployment(blocked_after_s=True), TypeError, "must be a number of seconds, got True"),
        (
            lambda: deployment(num_replicas=2),  # type: ignore[call-overload]
            TypeError,
            (
                "@deployment has no num_replicas: say `num_replicas: 2` of the backend in mesh.yaml, or "
                "`slotmesh run --replicas 2`"
            ),
        ),
        (
            lambda: deployment(autoscaling_config={"min_replicas": 1}),  # type: ignore[call-overload]
            TypeError,
            (
                "@deployment has no autoscaling_config: say `autoscale: {min: …, max: …}` of the backend in mesh.yaml "
                "(docs/autoscaling.md)"
            ),
        ),
        (
            lambda: deployment(max_ongoing_requests=5, ray_actor_options={"num_gpus": 1}),  # type: ignore[call-overload]
            TypeError,
            (
                "@deployment has no max_ongoing_requests: it is called max_ongoing here; @deployment has no "
                "ray_actor_options: say `devices, cpus, memory, env and python` of the backend in mesh.yaml"
            ),
        ),
        (
            lambda: deployment(num_gpus=2),  # type: ignore[call-overload]
            TypeError,
            "@deployment has no num_gpus: say `devices: {cuda: 2}` of the backend in mesh.yaml (docs/placement.md)",
        ),
        (lambda: deployment(max_ongoin=5), TypeError, "@deployment has no max_ongoin; did you mean max_ongoing?"),  # type: ignore[call-overload]
        (lambda: deployment(colour="red"), TypeError, "@deployment has no colour; it has max_ongoing, prefetch, "),  # type: ignore[call-overload]
        (
            lambda: batch(max_latency_ms=20),  # type: ignore[call-overload]
            TypeError,
            "@batch has no max_latency_ms: it is called batch_wait_timeout_s here, in seconds",
        ),
        (lambda: deployment(3), TypeError, "class or a function, got 3"),  # type: ignore[call-overload]
        (lambda: batch(max_batch_size=0), ValueError, "max_batch_size must be 1"),
        (lambda: batch(max_batch_size=2.5), TypeError, "got 2.5"),
        (lambda: batch(max_concurrent_batches=0), ValueError, "max_concurrent_batches"),
        (lambda: batch(batch_wait_timeout_s=-1), ValueError, "batch_wait_timeout_s must be finite and not neg"),
        (lambda: batch(batch_wait_timeout_s=float("nan")), ValueError, "got nan"),
        (lambda: batch(batch_wait_timeout_s=10**400), ValueError, "batch_wait_timeout_s must be finite"),
        (lambda: batch(batch_wait_timeout_s="10ms"), TypeError, "got '10ms'"),  # type: ignore[call-overload]
        (lambda: batch(batch_wait_timeout_s=True), TypeError, "got True"),
        (lambda: batch(batch_size_fn=3), TypeError, "batch_size_fn must be a function of an item, or None, got 3"),  # type: ignore[call-overload]
        (lambda: batch(max_batch_size=100_001), ValueError, "max_batch_size must be 1 … 100,000, got 100001"),
        (lambda: batch(max_batch_size=2**53 + 1, batch_size_fn=len), ValueError, "max_batch_size must be 1 … 9,"),
        (lambda: batch(max_batch_size=2.5, batch_size_fn=len), TypeError, "got 2.5"),
        (lambda: batch(staticmethod(len)), TypeError, "below @staticmethod"),
        (lambda: batch(object), TypeError, "@batch decorates a function"),  # type: ignore[arg-type]
    ],
)
def test_wrong_values_are_refused_with_the_value(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        make()


class Model:
    @batch(max_batch_size=2)
    def double(self, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    @batch(max_batch_size=1 << 30, batch_size_fn=len)
    async def weigh(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    @staticmethod
    @batch
    def negate(numbers: list[int]) -> list[int]:
        return [-number for number in numbers]

    @classmethod
    @batch
    def name(cls, numbers: list[int]) -> list[str]:
        return [f"{cls.__name__}{number}" for number in numbers]

    @batch
    def __call__(self, numbers: list[int]) -> list[int]:
        return numbers


@pytest.fixture(autouse=True)
def _as_they_were() -> Iterator[None]:
    yield
    Model.double.set_max_batch_size(2)


@pytest.mark.parametrize(
    ("set_it", "error", "words"),
    [
        (lambda method: method.set_max_batch_size(0), ValueError, "max_batch_size must be 1 … 100,000, got 0"),
        (lambda method: method.set_max_batch_size(100_001), ValueError, "got 100001"),
        (lambda method: method.set_max_batch_size(2.5), TypeError, "max_batch_size must be an integer, got 2.5"),
        (lambda method: method.set_max_batch_size(True), TypeError, "got True"),
        (lambda method: method.set_max_batch_size(None), TypeError, "got None"),
        (lambda method: method.set_batch_wait_timeout_s(-0.1), ValueError, "finite and not negative, got -0.1"),
        (lambda method: method.set_batch_wait_timeout_s(float("inf")), ValueError, "got inf"),
        (lambda method: method.set_batch_wait_timeout_s("1"), TypeError, "a number of seconds, got '1'"),
        (lambda method: method.set_max_concurrent_batches(0), ValueError, "max_concurrent_batches must be 1"),
        (lambda method: method.set_max_concurrent_batches(1.5), TypeError, "got 1.5"),
    ],
)
def test_a_setter_refuses_wrong_values_and_changes_nothing(
    set_it: Callable[[Any], None], error: type[Exception], words: str
) -> None:
    model = Model()
    with pytest.raises(error, match=re.escape(words)):
        set_it(model.double)
    assert batch_settings(Model.double) == BatchSettings(max_batch_size=2)


def test_a_weight_may_be_larger_than_a_number_of_calls() -> None:
    Model().weigh.set_max_batch_size(2**53)
    assert batch_settings(Model.weigh) == BatchSettings(max_batch_size=2**53, batch_size_fn=len)


def test_setters_are_found_on_the_function_and_on_the_bound_method() -> None:
    for each in (
        Model.double,
        Model().double,
        Model.negate,
        Model().negate,
        Model.name,
        Model().name,
        Model().__call__,
    ):
        each.set_max_batch_size(7)
        each.set_batch_wait_timeout_s(0.5)
        each.set_max_concurrent_batches(3)
        expected = BatchSettings(max_batch_size=7, batch_wait_timeout_s=0.5, max_concurrent_batches=3)
        assert batch_settings(each) == expected
        each.set_max_concurrent_batches(1)
        each.set_batch_wait_timeout_s(0.01)


def test_a_batch_function_stays_the_function_that_it_was() -> None:
    def handle(items: list[int]) -> list[int]:
        """Its own words."""
        return items

    decorated: Any = batch(handle)
    assert decorated is handle
    assert inspect.isfunction(decorated)
    assert (decorated.__name__, decorated.__doc__) == ("handle", "Its own words.")
    model: Any = Model()
    assert model.negate([1]) == [-1]
    assert model.name([1]) == ["Model1"]


def test_a_batch_method_may_yield() -> None:
    @batch(max_batch_size=3)
    def pairs(items: list[int]) -> Iterator[list[int]]:
        yield items
        yield [2 * item for item in items]

    assert batch_settings(pairs) == BatchSettings(max_batch_size=3)
    assert list(pairs([1, 2])) == [[1, 2], [2, 4]]
