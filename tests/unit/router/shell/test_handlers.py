"""Events are the only way into the router's core: each class of them has one handler."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import router_service.core
from router_service.core.events import RouterEvent, RouterTimePassed
from router_service.core.features.uploads import MAX_UPLOAD_BYTES
from router_service.core.plugged_balancers import NO_PLUG_INS
from router_service.core.scheduler import Handlers, Parts, RouterScheduler, handlers_of
from router_service.core.tenants import DEFAULT_TENANTS

ASKED = {"shadows_under_way", "next_deadline", "scan_calls", "table"}
TAKEN_BY_LINKS = {"cut_frame", "cut_ops"}
ACCOUNTING = {"admit", "joined", "left", "released"}
"""Of what callers have under way."""
READ = {"counters", "topology"}
"""What others only read."""


def classes_of_events() -> Iterator[type[RouterEvent]]:
    """Those of all modules of the core."""
    for module in pkgutil.walk_packages(router_service.core.__path__, "router_service.core."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, RouterEvent) and value is not RouterEvent:
                yield value


@pytest.fixture(scope="module")
def handlers() -> Handlers:
    return handlers_of(Parts(lambda: 0.5, MAX_UPLOAD_BYTES, DEFAULT_TENANTS, 0, 8_192, NO_PLUG_INS, ""))


def test_each_class_of_events_has_its_handler(handlers: Handlers) -> None:
    assert set(handlers.by_class) == set(classes_of_events())


def test_each_handler_has_one_class_of_events(handlers: Handlers) -> None:
    assert len(set(handlers.by_class.values())) == len(handlers.by_class)


def test_a_second_handler_is_refused(handlers: Handlers) -> None:
    with pytest.raises(ValueError, match="TimePassed has a handler"):
        handlers.add(RouterTimePassed, lambda _event, _step: None)


@pytest.mark.parametrize("event", sorted(set(classes_of_events()), key=str))
def test_events_are_where_one_looks_for_them(event: type[RouterEvent]) -> None:
    assert event.__module__.endswith((".events", ".features.taps", ".features.broadcasts"))
    assert "__dict__" not in dir(event), "one is made for each frame: it has slots"


def test_an_event_without_a_handler_is_refused_at_once() -> None:
    with pytest.raises(KeyError):
        RouterScheduler(lambda: 0.5).step(RouterEvent(), 0.0)


def test_there_is_no_other_way_in() -> None:
    public = {name for name in vars(RouterScheduler) if not name.startswith("_")} - READ
    assert public == {"step", "follow"} | ASKED | TAKEN_BY_LINKS | ACCOUNTING
