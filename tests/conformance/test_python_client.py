"""The Python SDK keeps every case of its level."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.conformance.adapter import AdapterProcess, adapter_process
from slotmesh.conformance.case import SESSIONS, Case, cases_of
from slotmesh.conformance.python_client import CAPABILITIES
from tests.conformance.kept import as_parameters, require_kept

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapter() -> AsyncIterator[AdapterProcess]:
    async with adapter_process([sys.executable, "-m", "slotmesh.conformance.python_client"]) as adapter:
        yield adapter


@pytest.mark.parametrize("case", as_parameters(cases_of("resumable", SESSIONS, *CAPABILITIES)))
async def test_the_python_client_keeps(case: Case, adapter: AdapterProcess) -> None:
    await require_kept(case, adapter)
