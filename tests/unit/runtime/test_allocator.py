"""What a process says to the C library about freed memory, and when it says nothing."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from slotmesh.runtime.allocator import keep_freed_memory


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


FAULTS = """
import resource, sys
import slotmesh

def faults_of_a_megabyte():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        several = [bytearray(b"x") * 1_000_000 for _ in range(8)]
        del several
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 400

if sys.argv[1] == "connected":
    slotmesh.connect("127.0.0.1:1")
faults_of_a_megabyte()
print(faults_of_a_megabyte())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(
    ("state", "set_by_user", "is_reused"),
    [("alone", {}, False), ("connected", {}, True), ("connected", {"MALLOC_MMAP_THRESHOLD_": "131072"}, False)],
)
def test_an_application_that_connects_reuses_the_memory_of_messages(
    state: str, set_by_user: dict[str, str], is_reused: bool
) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, state],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=plain | set_by_user,
    )
    faults = int(done.stdout)
    assert faults < 16 if is_reused else faults > 100, faults
