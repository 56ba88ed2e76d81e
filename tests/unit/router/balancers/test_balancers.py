"""Which balancers there are: each file of the package registers one, by a name of the model."""

from __future__ import annotations

from collections.abc import Iterator
from pkgutil import iter_modules

import pytest

from router_service.core import balancers
from router_service.core.balancers import new_balancer, register
from slotmesh.spec.model import BalancerName
from tests.unit.router.parts import chance, replica


@pytest.mark.parametrize("name", BalancerName)
def test_each_name_of_the_model_has_a_balancer_in_the_file_of_that_name(name: BalancerName) -> None:
    made = new_balancer(name, chance())
    assert type(made).__module__ == f"{balancers.__name__}.{name.name.lower()}"
    assert made.pick() is None, "it knows no replica yet"
    one = replica()
    made.changed(one)
    assert made.pick() is one


def test_each_file_has_a_balancer_with_a_name() -> None:
    assert {each.name for each in iter_modules(balancers.__path__)} == {each.name.lower() for each in BalancerName}


def test_a_name_is_given_once() -> None:
    def another(chance: object) -> Iterator[None]:
        raise NotImplementedError

    with pytest.raises(ValueError, match="LEAST_LOADED has a balancer already"):
        register(BalancerName.LEAST_LOADED)(another)  # type: ignore[type-var]
