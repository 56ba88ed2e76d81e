"""Each attack, small: it is answered as it should be, the bystander is not harmed, and what was taken comes back.

The meshes are shared, by the event loop of the module: each test leaves them as they were.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.attacks.bystander import Bystander, Times, bystander_of
from tests.attacks.catalogue import ATTACKS
from tests.attacks.footprint import MORE_DESCRIPTORS, MORE_MIB, Footprint
from tests.attacks.target import Target, target_of
from tests.attacks.trial import table_of, tried
from tests.support.tiers import long

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(120)]

SCALE = {
    "tokens": 0.002,
    "silent": 0.03,
    "slowly": 0.05,
    "resets": 0.05,
    "cancels": 0.02,
    "sessions": 0.002,
    "metadata": 0.005,
    "messages": 0.01,
    "fuzz": 0.005,
    "http_floods": 0.05,
}
QUIET_S = 0.3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[tuple[Target, Bystander]]:
    async with target_of(by_tls=False) as target, bystander_of(target.router, None) as bystander:
        yield target, bystander


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def by_tls() -> AsyncIterator[tuple[Target, Bystander]]:
    async with target_of(by_tls=True) as target, bystander_of(target.router, str(target.directory)) as bystander:
        yield target, bystander


@pytest.mark.parametrize("name", [*list(ATTACKS)[:3], *map(long, list(ATTACKS)[3:])])
async def test_an_attack_harms_nobody(name: str, plain: tuple[Target, Bystander]) -> None:
    await tried(ATTACKS[name], *plain, SCALE[name], QUIET_S)


@pytest.mark.long
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_by_tls_harms_nobody(name: str, by_tls: tuple[Target, Bystander]) -> None:
    trial = await tried(ATTACKS[name], *by_tls, SCALE[name], QUIET_S)
    assert f"{name} (tls): {trial.told}" in table_of([trial])


async def test_growth_is_more_than_pools_take() -> None:
    before = Footprint(rss_mib=100.0, descriptors=20)
    assert not Footprint(110.0 + MORE_MIB, 22 + MORE_DESCRIPTORS).has_grown_since(before)
    assert Footprint(111.0 + MORE_MIB, 20).has_grown_since(before)
    assert Footprint(100.0, 23 + MORE_DESCRIPTORS).has_grown_since(before)


async def test_times_are_those_of_the_calls() -> None:
    assert Times.of([]) == Times()
    assert Times.of([number / 1000 for number in range(1, 101)]) == Times(100, 50.0, 99.0, 100.0)
