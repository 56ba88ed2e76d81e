"""Which process it is: only what is certain counts as ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slotmesh.runtime.process_identity import has_ended, own_process

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not say")

CHILD = "import sys; from slotmesh.runtime.process_identity import own_process; print(own_process(), flush=True); "


@contextmanager
def child(then: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that says who it is, and then does this; it is reaped at the end."""
    command = [sys.executable, "-c", CHILD + then]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_process_that_lives_has_not_ended_and_one_that_was_reaped_has() -> None:
    with child("sys.stdin.read()") as (process, identity):
        assert identity != own_process()
        assert not has_ended(identity)
        process.kill()
        process.wait(timeout=60)
        assert has_ended(identity)
    assert not has_ended(own_process())


def test_a_process_that_nobody_has_reaped_yet_has_ended() -> None:
    with child("") as (process, identity):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.returncode is None
        assert has_ended(identity)


def test_a_process_whose_main_thread_has_ended_lives() -> None:
    then = "import ctypes, threading; threading.Thread(target=sys.stdin.read).start(); "
    with child(then + "ctypes.CDLL(None).pthread_exit(None)") as (process, identity):
        stat = Path(f"/proc/{process.pid}/stat")
        deadline = time.monotonic() + 10.0
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline, "its main thread has not ended"
        assert not has_ended(identity)


def test_a_number_that_was_used_again_is_another_process() -> None:
    place, _, started_at = own_process().rpartition(":")
    assert has_ended(f"{place}:{int(started_at) - 1}")


@pytest.mark.parametrize("at", range(3))
def test_of_another_boot_or_namespace_nothing_is_known(at: int) -> None:
    with child("sys.stdin.read()") as (process, identity):
        process.kill()
        process.wait(timeout=60)
        parts = identity.split(":")
        parts[at] += "0"
        assert has_ended(identity)
        assert not has_ended(":".join(parts))


@pytest.mark.parametrize("text", ["", ":", "a:b:c:1:2", ":::1:2", "1:2", f"{'x' * 200}:9"])
def test_what_is_no_identity_says_nothing(text: str) -> None:
    assert not has_ended(text)


def test_where_the_machine_does_not_say_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotmesh.runtime.process_identity._place", lambda: "")
    assert own_process() == ""
    assert not has_ended(":1:2")
