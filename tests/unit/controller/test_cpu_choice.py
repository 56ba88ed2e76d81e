"""Which CPUs replicas are pinned to: as many as they want, spread evenly, whatever lives."""

from __future__ import annotations

from collections import Counter
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller_service.core.cpu_choice import choose_cpus
from controller_service.shell.launchers.process_start import is_compatible
from tests.support.examples import examples

CPUS = st.sets(st.integers(0, 20), min_size=1, max_size=8)


def test_those_in_use_least_come_first_then_the_lowest_numbers() -> None:
    assert choose_cpus(1, {3, 1, 2}, []) == {1}
    assert choose_cpus(2, {3, 1, 2}, [({1}, 1.0)]) == {2, 3}
    assert choose_cpus(1, {1, 2}, [({1, 2}, 1.0), ({2}, 0.5)]) == {1}
    assert choose_cpus(1, {1, 2}, [({1}, 0.2), ({1}, 0.2), ({2}, 0.5)]) == {1}, "shares count, not replicas"
    assert choose_cpus(0.1, {5}, [({5}, 4.0)]) == {5}, "more replicas than CPUs share them"


@settings(max_examples=examples(200))
@given(CPUS, st.lists(st.floats(0.1, 3.0), max_size=20))
def test_replicas_that_want_the_same_are_spread_evenly(allowed: set[int], wanted: list[float]) -> None:
    held: list[tuple[frozenset[int], float]] = []
    for share in wanted:
        if ceil(share) > len(allowed):
            with pytest.raises(ValueError, match=f"there are {len(allowed)}$"):
                choose_cpus(share, allowed, held)
            continue
        chosen = choose_cpus(share, allowed, held)
        assert len(chosen) == ceil(share)
        assert chosen <= allowed
        used: Counter[int] = Counter()
        for cpus, each in held:
            for cpu in cpus:
                used[cpu] += each / len(cpus)  # type: ignore[assignment]
        assert all(used[cpu] <= used[other] + 1e-9 for cpu in chosen for other in allowed - chosen)
        held.append((chosen, share))


@pytest.mark.parametrize(
    ("version", "own", "works"),
    [
        ("0.2.0", "0.2.0", True),
        ("0.2.7", "0.2.0", True),
        ("0.1.0", "0.2.0", True),
        ("0.3.0.dev1", "0.2.0", True),
        ("0.4.0", "0.2.0", False),
        ("0.1.0", "0.3.0", False),
        ("1.2.0", "0.2.0", False),
        ("unknown", "0.2.0", False),
        ("", "0.2.0", False),
    ],
)
def test_replicas_may_be_one_minor_release_older_or_newer(version: str, own: str, works: bool) -> None:
    assert is_compatible(version, own) is works
