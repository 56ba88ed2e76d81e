"""A server that has started, its servicer, and a channel to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.contract.server.served_router import Setting, serving


@pytest_asyncio.fixture
async def setting() -> AsyncIterator[Setting]:
    async with serving() as parts:
        yield parts
