"""`python -m tests.support.state_killing FOLDER KILLS SEED`: kills a process that writes a state file, again and again.

Purpose: each writer makes random changes, one after another, and says when each is acknowledged, until it is killed
with SIGKILL at a random moment; then the file has the newest acknowledged state, or the one whose change was under way.
A process of its own, without threads, because it forks. It prints how many changes were made, and how many of
these were in the file although they were not acknowledged: then the kill fell between the two.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from controller_service.core.desired.state import Desired
from controller_service.store.sqlite.state_file import StateFile, read_file
from tests.support.state_changes import random_change

LONGEST_S: Final = 0.008
"""A writer lives for so long after its first acknowledgement, at most: some changes."""
_NUMBER_BYTES: Final = 8


def open_state(path: Path) -> StateFile:
    return StateFile.open(path, lambda: ("a" * 32, Desired()))


def write(path: Path, seed: int, said: int) -> None:
    """In the process that is killed: says each acknowledged revision."""
    file, random = open_state(path), Random(seed)
    while True:
        os.write(said, file.desired.revision.to_bytes(_NUMBER_BYTES))
        file.commit(random_change(random, file.desired), file.desired.revision)


def kill_a_writer(path: Path, seed: int, after_s: float) -> int:
    """Returns the newest acknowledged revision; 0 where there was none."""
    heard, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        try:
            write(path, seed, said)
        finally:
            os._exit(1)
    os.close(said)
    words = os.read(heard, _NUMBER_BYTES)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, f"the writer ended by itself: {status}"
    while more := os.read(heard, 1 << 16):
        words += more
    os.close(heard)
    return int.from_bytes(words[-_NUMBER_BYTES:])


def replayed(before: Desired, seed: int, through_revision: int) -> list[Desired]:
    """The states that the writer went through, from its start on, and the one that comes after."""
    states, random = [before], Random(seed)
    while states[-1].revision <= through_revision:
        states.append(states[-1].apply(random_change(random, states[-1])))
    return states


def main(folder: Path, kills: int, seed: int) -> None:
    random, path = Random(seed), folder / "state"
    open_state(path).close()
    written = changes = 0
    _, before = read_file(path)
    for _ in range(kills):
        writer_seed = random.getrandbits(32)
        acknowledged = kill_a_writer(path, writer_seed, random.random() * LONGEST_S)
        _, found = read_file(path)
        states = replayed(replace(before, revision=before.revision + 1), writer_seed, acknowledged)
        assert found in states[-2:], f"revision {found.revision} after {acknowledged} was acknowledged"
        written += found == states[-1]
        changes += found.revision - before.revision
        before = found
    sys.stdout.write(f"{kills} kills, {changes} changes, {written} of them not acknowledged\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
