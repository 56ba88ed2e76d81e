"""Erlang's C formula against known values."""

from __future__ import annotations

from math import exp, inf

import pytest

from simulation.queues.settings import QueuesSettings
from simulation.queues.theory import probability_of_waiting, references, waiting_time


@pytest.mark.parametrize(
    ("servers", "work", "waiting"), [(1, 0.9, 0.9), (2, 1.0, 1 / 3), (10, 8.0, 0.4092), (3, 3.0, 1)]
)
def test_the_probability_of_waiting(servers: int, work: float, waiting: float) -> None:
    assert probability_of_waiting(servers, work) == pytest.approx(waiting, abs=1e-4)


def test_one_server_has_the_known_quantile() -> None:
    quantile = waiting_time(1, 0.9, 0.99)
    assert 0.9 * exp(-(1.0 - 0.9) * quantile) == pytest.approx(0.01)


def test_most_calls_do_not_wait_where_there_are_many_servers() -> None:
    assert waiting_time(1000, 500.0, 0.99) == 0.0


def test_too_much_work_waits_for_ever() -> None:
    assert waiting_time(10, 9.8, 0.5, occupied=1.04) == inf


def test_a_mesh_is_between_one_queue_and_a_queue_a_router() -> None:
    shared, held, split, split_and_held = references(QueuesSettings(slots=1))
    assert [round(each.p99, 2) for each in (shared, held, split, split_and_held)] == [0.04, 0.36, 0.61, 3.08]
