"""Ctrl-C while the command line still loads its modules: the process ends by the signal, without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.mesh import ROOT

INTERRUPTS = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Interrupting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "grpc":
            os.kill(os.getpid(), signal.SIGINT)
            print("went on", flush=True)

signal.signal(signal.SIGINT, {handler})
sys.meta_path.insert(0, Interrupting())
sys.argv = ["slotmesh", "--version"]
from slotmesh.cli import main
main()
"""


def interrupted(handler: str) -> subprocess.CompletedProcess[str]:
    """A command that gets SIGINT as it imports gRPC."""
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTS.format(handler=handler)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )


def test_it_ends_by_the_signal_without_a_word() -> None:
    ended = interrupted("signal.default_int_handler")
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.slow
def test_a_signal_that_whoever_started_it_ignores_is_ignored() -> None:
    ended = interrupted("signal.SIG_IGN")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "went on" in ended.stdout
