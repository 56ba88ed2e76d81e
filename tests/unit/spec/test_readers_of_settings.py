"""Who reads each setting of a backend, and what becomes of replicas when it changes: written down by hand.

`tests/unit/spec/test_settings.py` holds the code to the declarations; this table holds the declarations to what is
meant.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from controller_service.core.desired import handler_code
from controller_service.core.desired.handler_code import fixed_of, template_of
from slotmesh.spec.environment import EnvironmentValue
from slotmesh.spec.model import DOCUMENT_SETTINGS, SETTINGS, Affinity, Autoscale, Backend, PodSettings, SloScope
from slotmesh.spec.setting import Change

REPLACING: Final[dict[str, Any]] = {
    "handler": "a:B",
    "version": "2",
    "code": "sha",
    "pod": PodSettings(image="registry/app:2"),
    "env": {"A": EnvironmentValue(value="1")},
    "python": "venv",
    "cwd": "app",
    "cpus": 2.0,
    "memory": 2**30,
    "own_loop": True,
    "devices": {"cuda": 1},
}
"""Another value replaces replicas."""
GIVEN: Final[dict[str, Any]] = {"user_config": {"k": 1}}
"""Another value replaces those replicas whose handlers do not take it."""
ROUTED: Final[dict[str, Any]] = {
    "max_queued_calls": 7,
    "max_queued_bytes": 7,
    "max_queue_time_s": 7.0,
    "max_wire_batch_size": 7,
    "balancer": "round_robin",
    "slo_scope": SloScope.BACKEND,
    "affinity": Affinity.PREFIX,
}
"""Routers read it."""
OTHERS: Final[dict[str, Any]] = {
    "num_replicas": 7,
    "autoscale": Autoscale(),
    "max_ongoing": 7,
    "prefetch": 7,
    "graceful_timeout_s": 7.0,
    "health_check_period_s": 7.0,
    "health_check_timeout_s": 7.0,
    "max_surge": 7,
    "max_unavailable": 7,
    "min_ready_s": 7.0,
    "progress_deadline_s": 7.0,
    "max_error_rate": 0.7,
}
ALL: Final = REPLACING | GIVEN | ROUTED | OTHERS
BACKEND: Final = Backend(name="b", handler="a:A", version="1")


def test_each_setting_is_in_the_table() -> None:
    assert set(ALL) == {each.attribute for each in SETTINGS.values()}
    assert set(SETTINGS) - set(DOCUMENT_SETTINGS) == {"code"}, "which the controller fills in"


@pytest.mark.parametrize("attribute", ALL)
def test_what_a_change_of_it_means(attribute: str) -> None:
    changed = replace(BACKEND, **{attribute: ALL[attribute]})
    assert changed != BACKEND
    assert (template_of(changed) != template_of(BACKEND)) is (attribute in REPLACING or attribute in GIVEN)
    assert (fixed_of(changed) != fixed_of(BACKEND)) is (attribute in REPLACING)
    assert (changed.routed() != BACKEND.routed()) is (attribute in ROUTED)


def test_the_name_is_part_of_what_is_routed_and_no_part_of_what_replaces() -> None:
    assert BACKEND.routed().name == "b"
    assert template_of(replace(BACKEND, name="c")) == template_of(BACKEND)


def test_digests_are_those_of_0_2_0_where_no_newer_setting_is_used() -> None:
    assert template_of(BACKEND) == "74c60a45d9fb0f1ec6979a95e35de4d6"
    assert fixed_of(BACKEND) == "bad42477533e8d01c8dff13674597679"


def test_a_newer_setting_is_in_digests_only_if_it_differs_from_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = replace(SETTINGS["max_error_rate"], change=Change.REPLACES, is_newer=True)
    template = template_of(BACKEND)
    monkeypatch.setattr(handler_code, "SETTINGS", {**SETTINGS, "max_error_rate": newer})
    assert template_of(BACKEND) == template
    assert template_of(replace(BACKEND, max_error_rate=0.0)) != template
