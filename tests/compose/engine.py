"""A container engine for the tests: the one that answers, or one of their own in a network namespace of their own.

Purpose: the compose file runs where users run it. Nothing of the machine is changed: the own engine has its data in the
folder that it is given, and its networks and published ports exist in the namespace only, which this process is in.
Owner: the runner, which enters before any other thread runs.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

READY_S: Final = 30.0
STOP_S: Final = 30.0
_CLONE_NEWNET: Final = 0x40000000


class NoEngine(Exception):
    """There is none, and none can be started here. The text says why."""


def answers() -> bool:
    """Whether an engine answers, at DOCKER_HOST or at the usual place."""
    try:
        done = subprocess.run(["docker", "version"], capture_output=True, timeout=20, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@contextmanager
def own_engine(folder: Path) -> Iterator[None]:
    """An engine for as long as the block lasts. This process moves to its network and stays there: DOCKER_HOST is set.

    Raises:
        NoEngine: it cannot be started.
    """
    daemon = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if os.geteuid() != 0:
        raise NoEngine("no container engine answers, and only root can start one")
    if daemon is None or shutil.which("docker") is None:
        raise NoEngine("no container engine answers, and dockerd or docker is not installed (Debian: docker.io)")
    _leave_network()
    os.environ["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
    paths = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/docker.pid"]
    with (folder / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(
            [daemon, "--host", os.environ["DOCKER_HOST"], *paths], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _wait_ready(process, folder / "dockerd.log")
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def _leave_network() -> None:
    """This process, and what it starts, see a network of their own, which has a loopback and nothing else."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise NoEngine(f"no network namespace can be made: {os.strerror(ctypes.get_errno())}")
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoEngine(f"the loopback of the namespace cannot be set up: {error}") from error


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            last = log.read_text("utf-8", "replace").splitlines()[-5:]
            raise NoEngine("dockerd does not serve:\n  " + "\n  ".join(last))
        time.sleep(0.2)
