"""Syntax trees are kept as long as tests of this folder run: later ones would drag hundreds of megabytes along."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.arch.sources import tree_of


@pytest.fixture(scope="package", autouse=True)
def _trees() -> Iterator[None]:
    yield
    tree_of.cache_clear()
