"""Routers that link to a part of the replicas, in the simulation of queues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.queues import subsets
from simulation.queues.mesh import QueuesMesh
from simulation.queues.report import QueuesOutcome
from simulation.queues.settings import QueuesSettings

pytestmark = pytest.mark.long
"""Seconds of simulation: properties of links to subsets, and `make sim`, fail for the same reasons."""


def simulated(settings: QueuesSettings) -> QueuesOutcome:
    mesh = QueuesMesh(settings)
    return QueuesOutcome(settings=settings, figures=mesh.run(), seconds=1.0, links=max(mesh.links))


@pytest.fixture(scope="module")
def compared() -> subsets.Comparison:
    """20 routers and 400 replicas, with subsets of 40 replicas, and with links to all."""
    (found,) = subsets.simulate(subsets.settings(is_quick=True), simulated)
    return found


def test_calls_wait_no_longer_than_with_links_to_all(compared: subsets.Comparison) -> None:
    assert compared.subset.links == 40
    assert compared.all.links == 400
    assert compared.ratio <= subsets.LARGEST_RATIO
    assert compared.is_as_expected
    assert "✓" in subsets.table([compared])


@pytest.mark.parametrize("how", ["p99", "links", "failed"])
def test_what_has_to_hold_is_checked(compared: subsets.Comparison, how: str) -> None:
    few = compared.subset
    worse = {
        "p99": replace(few, figures=replace(few.figures, p99=compared.all.figures.p99 * 1.4)),
        "links": replace(few, links=41),
        "failed": replace(few, figures=replace(few.figures, failed=1)),
    }[how]
    other = subsets.Comparison(worse, compared.all)
    assert not other.is_as_expected
    assert "✗" in subsets.table([other])


def test_the_table_is_measured(compared: subsets.Comparison) -> None:
    assert "400 replicas" in subsets.table_costs(compared.subset.settings)
