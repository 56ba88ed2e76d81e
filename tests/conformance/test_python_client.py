"""The Python SDK keeps every case of its level."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conformance.case import Case, cases_of
from tests.conformance.client import ClientProcess, client_process
from tests.conformance.player import play
from tests.conformance.python_adapter import FEATURES

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[ClientProcess]:
    async with client_process([sys.executable, "-m", "tests.conformance.python_adapter"]) as client:
        yield client


@pytest.mark.parametrize("case", cases_of("resumable", *FEATURES), ids=lambda case: case.name)
async def test_the_python_client_keeps(case: Case, client: ClientProcess) -> None:
    await play(case, client)
