"""Settings of a `slotmesh.testing.Backend`: those of `mesh.yaml`, and errors where the backend is made."""

from __future__ import annotations

from typing import Any

import pytest

import slotmesh.testing
from slotmesh.spec.environment import written_environment
from slotmesh.spec.model import Autoscale, SloScope


class Echo:
    async def echo(self, value: int) -> int:
        return value


def backend(**settings: Any) -> slotmesh.testing.Backend:
    return slotmesh.testing.Backend(Echo, settings=settings)


@pytest.mark.parametrize("scope", ["backend", SloScope.BACKEND])
@pytest.mark.asyncio
async def test_a_choice_is_given_by_its_name_or_its_member(scope: Any) -> None:
    async with slotmesh.testing.mesh({"echo": backend(balancer="round_robin", slo_scope=scope)}) as mesh:
        assert await mesh.endpoint("echo").echo(1) == 1


def test_settings_become_those_of_the_model() -> None:
    spec = backend(slo_scope="backend", max_queue_time_s=3, max_queued_bytes=10, own_loop=True).to_spec("echo")
    assert (spec.slo_scope, spec.max_queue_time_s, spec.max_queued_bytes, spec.own_loop) == (
        SloScope.BACKEND,
        3,
        10,
        True,
    )
    autoscaled = {"num_replicas": None, "autoscale": {"min": 1, "max": 2}}
    autoscale = backend(**autoscaled).to_spec("echo").autoscale
    assert isinstance(autoscale, Autoscale)
    assert (autoscale.min, autoscale.max) == (1, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"balancer": "roundrobin"}, "balancer is 'roundrobin'; did you mean round_robin?"),
        ({"balancer": 3}, "balancer must be a str, got 3"),
        ({"slo_scope": "all"}, "slo_scope must be one of .*backend.*, got 'all'"),
        ({"max_queued_calls": "10"}, "max_queued_calls must be an int, got '10'"),
        ({"max_queued_calls": True}, "max_queued_calls must be an int, got True"),
        ({"max_queued_calls": -1}, "max_queued_calls must be .*-1"),
        ({"max_queue_time_s": "3s"}, "max_queue_time_s must be a number of seconds, got '3s'"),
        ({"own_loop": 1}, "own_loop must be a bool, got 1"),
        ({"max_surge": 0, "max_unavailable": 0}, "max_surge 0 with"),
        ({"no_such_setting": 1}, "a backend has no no_such_setting"),
    ],
)
def test_a_value_that_cannot_be_is_an_error_where_the_backend_is_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        backend(**settings)


def test_settings_of_processes_are_checked_and_no_value_of_a_variable_is_repeated() -> None:
    spec = backend(env={"A": "1", "B": {"file": "/run/b"}}, cwd="/srv", cpus=1, memory=2**30).to_spec("echo")
    assert written_environment(spec.env) == {"A": "1", "B": {"file": "/run/b"}}
    assert (spec.cwd, spec.cpus, spec.memory) == ("/srv", 1, 2**30)
    for wrong, text in (
        ({"A": ["hunter-2"]}, "env.A must be text, {inherit: true} or {file: PATH}"),
        ("hunter-2", "env must be a mapping, got str"),
        ({"SLOTMESH_A": "hunter-2"}, "env.SLOTMESH_A is set by slotmesh itself: leave it out"),
    ):
        with pytest.raises(TypeError) as refused:
            backend(env=wrong)
        assert str(refused.value) == text
