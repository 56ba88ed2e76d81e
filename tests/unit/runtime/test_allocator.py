"""What a process says to the C library about freed memory, and when it says nothing."""

from __future__ import annotations

import ctypes

import pytest

from slotmesh.runtime.main import keep_freed_memory


class Library:
    """A C library that writes down what it is told."""

    def __init__(self) -> None:
        self.told: dict[int, int] = {}

    def mallopt(self, parameter: int, value: int) -> int:
        self.told[parameter] = value
        return 1


M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""As malloc.h of glibc has them."""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    for variable in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(variable, raising=False)
    return library


def test_freed_memory_is_kept(library: Library) -> None:
    keep_freed_memory()
    assert library.told == {M_TRIM_THRESHOLD: 64 << 20, M_MMAP_THRESHOLD: 4 << 20}


def test_what_the_user_has_set_stays(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    keep_freed_memory()
    assert list(library.told) == [M_MMAP_THRESHOLD]


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    keep_freed_memory()
