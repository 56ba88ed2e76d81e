"""Each field that a refusal of any contract test names is a field of the request that was sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.field_paths import checked_paths


@pytest.fixture(scope="session", autouse=True)
def wrong_field_paths() -> Iterator[list[str]]:
    """Those that servers of this process have sent since the last test."""
    with pytest.MonkeyPatch.context() as patch, checked_paths(patch) as wrong:
        yield wrong


@pytest.fixture(autouse=True)
def _fields_of_refusals(wrong_field_paths: list[str]) -> Iterator[None]:
    yield
    wrong, wrong_field_paths[:] = [*wrong_field_paths], []
    assert not wrong, "BadRequest names fields that the request does not have"
