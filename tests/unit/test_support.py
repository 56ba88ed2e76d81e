"""What the tests lean on can be leaned on."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.wait import wait_until


@pytest.mark.asyncio
async def test_a_wait_ends_with_the_first_true_value() -> None:
    found: list[int] = []
    asyncio.get_running_loop().call_later(0.01, found.append, 7)
    assert await wait_until(lambda: found and found[0], what="it was found") == 7


@pytest.mark.asyncio
async def test_a_wait_says_what_did_not_happen() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.01 s: the moon is green \(last: 0\)"):
        await wait_until(lambda: 0, timeout=0.01, what="the moon is green")
