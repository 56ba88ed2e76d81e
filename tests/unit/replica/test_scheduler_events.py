"""Each event has its handler, and no handler waits for what never comes."""

from __future__ import annotations

import dataclasses
from typing import get_args

from replica_service.core import events
from replica_service.core.scheduler import HANDLERS


def defined() -> set[type]:
    """The classes of the module that are no commands."""
    return {
        each
        for each in vars(events).values()
        if isinstance(each, type) and dataclasses.is_dataclass(each) and each.__module__ == events.__name__
    } - set(get_args(events.ReplicaCommand))


def test_every_event_has_one_handler() -> None:
    assert set(HANDLERS) == defined()


def test_every_event_can_be_posted() -> None:
    assert set(get_args(events.ReplicaEvent)) == defined()


def test_events_are_data() -> None:
    for each in defined():
        fields = {field.name for field in dataclasses.fields(each)}
        assert {name for name in vars(each) if not name.startswith("_")} == fields, each
