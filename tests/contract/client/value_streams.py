"""What tests ask of the client's iterators of values."""

from __future__ import annotations

from typing import Any

import pytest

import slotmesh
from tests.support.fakes.router import FakeRouter


def taken_back(router: FakeRouter) -> list[int]:
    return [call_id for frame in router.cancels for each in frame for call_id in each]


async def failure_of(values: slotmesh.ValueStream[Any]) -> slotmesh.SlotmeshError:
    with pytest.raises(slotmesh.SlotmeshError) as caught:
        await anext(values)
    return caught.value
