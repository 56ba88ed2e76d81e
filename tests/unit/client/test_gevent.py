"""A process in which gevent has replaced threads by greenlets."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import slotmesh


class Monkey(ModuleType):
    """What is asked of `gevent.monkey`, which need not be installed."""

    patched: frozenset[str] = frozenset()

    def is_module_patched(self, name: str) -> bool:
        return name in self.patched


@pytest.fixture
def monkey(monkeypatch: pytest.MonkeyPatch) -> Monkey:
    module = Monkey("gevent.monkey")
    monkeypatch.setitem(sys.modules, "gevent.monkey", module)
    return module


def test_a_client_with_a_thread_is_refused_where_threads_are_greenlets(monkey: Monkey) -> None:
    monkey.patched = frozenset({"threading", "socket"})
    with pytest.raises(RuntimeError, match=r"gevent\.monkey has patched `threading`.*patch_all\(thread=False"):
        slotmesh.connect_sync("localhost:7071")


def test_one_is_made_where_gevent_has_left_threads_alone(monkey: Monkey) -> None:
    monkey.patched = frozenset({"socket"})
    slotmesh.connect_sync("localhost:7071").close()
