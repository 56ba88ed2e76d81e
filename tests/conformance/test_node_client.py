"""The Node client keeps every case of its level."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conformance.case import Case, cases_of
from tests.conformance.client import ClientProcess, client_process
from tests.conformance.node import ADAPTER, node
from tests.conformance.player import play

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[ClientProcess]:
    async with client_process([node(), str(ADAPTER)]) as client:
        yield client


@pytest.mark.parametrize("case", cases_of("windowed", "no_reply"), ids=lambda case: case.name)
async def test_the_node_client_keeps(case: Case, client: ClientProcess) -> None:
    await play(case, client)
