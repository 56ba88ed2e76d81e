"""`make test-compiled` runs on compiled cores, everything else on their sources: there is no mixture of both."""

from __future__ import annotations

import importlib
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from slotmesh.version import IS_COMPILED, VERSION
from tools import compile_cores


@pytest.mark.parametrize("source", list(compile_cores.sources()))
def test_each_module_is_of_the_kind_that_the_version_says(source: str) -> None:
    module = importlib.import_module(source.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    assert module.__file__ is not None
    assert module.__file__.endswith(tuple(EXTENSION_SUFFIXES) if IS_COMPILED else ".py")


def test_the_version_says_so() -> None:
    assert VERSION.endswith("+compiled") is IS_COMPILED
