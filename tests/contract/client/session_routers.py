"""Two scripted routers that one session may use."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import slotmesh
from tests.support.fakes.router import FakeRouter

Routers = tuple[FakeRouter, FakeRouter]


async def failure_of(future: asyncio.Future[Any]) -> slotmesh.SlotmeshError:
    with pytest.raises(slotmesh.SlotmeshError) as caught:
        await future
    return caught.value


def ids_of(router: FakeRouter) -> list[list[int]]:
    return [list(batch.ids) for batch in router.batches]


def count_to(number: int) -> list[bytes]:
    return [b"%d" % each for each in range(number)]
