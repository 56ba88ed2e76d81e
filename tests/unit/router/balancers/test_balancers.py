"""Which balancers there are: each file of the package registers one, by a name of the model."""

from __future__ import annotations

from collections.abc import Iterator
from pkgutil import iter_modules

import pytest

from router_service.core import balancers
from router_service.core.balancers import new_balancer, register
from slotmesh.balancers import ANY_CALLS
from slotmesh.spec.model import BUILT_IN_BALANCERS
from tests.unit.router.parts import chance, replica


@pytest.mark.parametrize("name", BUILT_IN_BALANCERS)
def test_each_name_of_the_model_has_a_balancer_in_the_file_of_that_name(name: str) -> None:
    made = new_balancer(name, chance())
    assert type(made).__module__ == f"{balancers.__name__}.{name}"
    assert made.pick(ANY_CALLS, ()) is None, "it knows no replica yet"
    one = replica()
    made.changed(one)
    assert made.pick(ANY_CALLS, ()) is one


def test_each_file_has_a_balancer_with_a_name() -> None:
    assert {each.name for each in iter_modules(balancers.__path__)} - {"near_first"} == {*BUILT_IN_BALANCERS}


def test_a_name_is_given_once() -> None:
    def another(chance: object) -> Iterator[None]:
        raise NotImplementedError

    with pytest.raises(ValueError, match=r"least_loaded is none of .*, or has a balancer already"):
        register("least_loaded")(another)  # type: ignore[type-var]
