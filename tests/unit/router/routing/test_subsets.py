"""The division of replicas among routers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.core.routing.subsets import copies_of, divided
from tests.support.examples import examples

SETS = st.integers(1, 40), st.integers(1, 60), st.integers(1, 45)


def names(count: int, kind: str) -> list[str]:
    return [f"{kind}-{number}" for number in range(count)]


@settings(max_examples=examples(200), deadline=None)
@given(*SETS)
def test_each_replica_has_its_routers_and_no_router_more_than_its_share(
    routers: int, replicas: int, copies: int
) -> None:
    shares = divided(names(routers, "router"), names(replicas, "replica"), copies)
    linked = Counter(each for share in shares.values() for each in share)
    assert linked == dict.fromkeys(names(replicas, "replica"), min(copies, routers))
    most = -(-min(copies, routers) * replicas // routers)
    assert max(map(len, shares.values())) <= most


def test_the_order_of_names_does_not_matter() -> None:
    routers, replicas = names(7, "router"), names(50, "replica")
    assert divided(routers, replicas, 2) == divided(reversed(routers), [*reversed(replicas), replicas[0]], 2)


def test_the_target_is_reached() -> None:
    """100 routers and 10,000 replicas: two routers for each replica, 200 links for each router."""
    assert copies_of(100, {"x": 10_000}, 200) == {"x": 2}
    shares = divided(names(100, "10.0.0"), names(10_000, "replica"), 2)
    assert {len(share) for share in shares.values()} == {200}


@pytest.mark.parametrize(
    ("routers", "replicas", "most"),
    [((20, 20), (1000, 1001), 100), ((20, 21), (1000, 1000), 600)],
    ids=["replica", "router"],
)
def test_one_more_moves_few(routers: tuple[int, int], replicas: tuple[int, int], most: int) -> None:
    """Of 4,000 links; a new router takes 190 in any case."""
    before = divided(names(routers[0], "router"), names(replicas[0], "replica"), 4)
    after = divided(names(routers[1], "router"), names(replicas[1], "replica"), 4)
    assert sum(len(share - before.get(name, set())) for name, share in after.items()) <= most


@pytest.mark.parametrize(
    ("routers", "replicas", "size", "copies"),
    [
        (10, {"x": 200}, 200, {"x": 10}),
        (10, {"x": 201}, 200, {"x": 9}),
        (10, {"x": 10_000}, 0, {"x": 10}),
        (10, {"x": 10_000}, 200, {"x": 2}),
        (1, {"x": 10_000}, 200, {"x": 1}),
        (100, {"x": 990, "y": 10}, 200, {"x": 20, "y": 30}),
        (100, {"x": 998, "y": 2}, 200, {"x": 20, "y": 100}),
        (100, {"x": 1000, "y": 0}, 200, {"x": 20, "y": 100}),
    ],
    ids=[
        "fits",
        "one_more",
        "no_size",
        "least_routers",
        "only_router",
        "small_backend",
        "tiny_backend",
        "empty_backend",
    ],
)
def test_copies(routers: int, replicas: dict[str, int], size: int, copies: dict[str, int]) -> None:
    assert copies_of(routers, replicas, size) == copies
