"""Syntax trees are kept as long as tests of this folder run: later ones would drag hundreds of megabytes along.

The garbage collector, which would look through them again and again, is off meanwhile: a quarter of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.arch.sources import tree_of


@pytest.fixture(scope="package", autouse=True)
def _trees() -> Iterator[None]:
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()
