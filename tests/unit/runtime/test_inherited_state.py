"""Processes that are started without stdin, stdout or stderr, or with signals that are ignored or blocked."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, subprocess, sys
from slotmesh.runtime.inherited_state import undo_inherited_state
undo_inherited_state()
with open(sys.argv[1], "w") as out:
    child = "import sys; sys.exit(None in (sys.stdin, sys.stdout, sys.stderr))"
    of_children = subprocess.run([sys.executable, "-c", child])
    print([os.fstat(it).st_rdev == os.stat(os.devnull).st_rdev for it in range(3)], of_children.returncode, file=out)
    print("text"), print("text", file=sys.stderr)
    sys.stdout.flush(), sys.stderr.flush()
    print(sys.stdin.read() == "", out.fileno() > 2, file=out)
"""
MISSING = [it for size in range(4) for it in itertools.combinations((0, 1, 2), size)]


@pytest.mark.skipif(sys.platform == "win32", reason="closes descriptors by a shell")
@pytest.mark.parametrize("missing", MISSING, ids=str)
def test_those_that_are_missing_are_the_null_device(missing: tuple[int, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    closed = " ".join(("<&-", ">&-", "2>&-")[it] for it in missing)
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", PROGRAM, str(out)]
    done = subprocess.run(command, input=b"", capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"text") == (1 not in missing)
    assert done.stderr.count(b"text") == (2 not in missing)
    assert out.read_text() == f"{[it in missing for it in range(3)]} 0\nTrue True\n"


SIGNALS = """
import os, signal, subprocess, sys
from slotmesh.runtime.inherited_state import undo_inherited_state
if sys.argv[1:] != ["started"]:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], "started"])
undo_inherited_state()
print(subprocess.run([sys.executable, "-S", "-c", "import sys; sys.exit(7)"]).returncode, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
def test_ends_of_children_are_seen_and_sigterm_arrives_whatever_the_starter_has_done_to_signals() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALS], capture_output=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == (b"7\n", -15)


@pytest.mark.parametrize(
    "name", [*(f"{it}_service.__main__" for it in ("controller", "router", "replica", "ingress")), "slotmesh.cli"]
)
def test_services_and_commands_begin_with_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.import_module(name)

    class Began(Exception):
        pass

    def begin() -> None:
        raise Began

    monkeypatch.setattr(entry, "undo_inherited_state", begin)
    with pytest.raises(Began):
        entry.main()
