"""The Node client keeps every case of its level."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.conformance.adapter import AdapterProcess, adapter_process
from slotmesh.conformance.case import Case, cases_of
from tests.conformance.kept import as_parameters, require_kept
from tests.conformance.node import ADAPTER, node

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapter() -> AsyncIterator[AdapterProcess]:
    async with adapter_process([node(), str(ADAPTER)]) as adapter:
        yield adapter


@pytest.mark.parametrize("case", as_parameters(cases_of("windowed", "no_reply", "tenants")))
async def test_the_node_client_keeps(case: Case, adapter: AdapterProcess) -> None:
    await require_kept(case, adapter)
