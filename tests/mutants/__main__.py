"""`make mutants`: breaks the product on purpose, one defect after another, and expects the tests to notice each.

Purpose: no test gets weaker unseen. It works on copies of the repository, as it is on disk, ignored files left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from tests.arch.sources import ROOT
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

PYTEST: Final = ("-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "--hypothesis-profile=mutants")
TIMEOUT_S: Final = 300.0
"""Of the tests of one mutant."""
TESTS_FAILED: Final = 1
"""Exit status of pytest where tests ran and one of them failed."""
_FIRST_FAILURE: Final = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


class Verdict(NamedTuple):
    """What came of one mutant."""

    mutant: Mutant
    is_caught: bool
    why: str
    """The test that failed, or what happened instead."""
    took_s: float


def copy_to(folder: Path) -> Path:
    """A copy of the repository: what git tracks, and what it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - the developer's git
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        if source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return folder


def run_tests(root: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Exit status and output of pytest in a copy. What broken code has left running ends with it."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, *PYTEST, *tests],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return -1, f"no end within {TIMEOUT_S:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output.decode(errors="replace")


def judge(mutant: Mutant, root: Path) -> Verdict:
    """Applies the mutant to the copy, runs its tests, takes it back, and runs the test that has failed once more."""
    begin = time.monotonic()
    try:
        path = mutant.apply(root)
    except ValueError as error:
        return Verdict(mutant, False, str(error), 0.0)
    try:
        status, output = run_tests(root, mutant.tests)
    finally:
        shutil.copy2(ROOT / path.relative_to(root), path)
    if status == 0:
        why = "survived"
    elif status != TESTS_FAILED or not (failed := _FIRST_FAILURE.search(output)):
        why = f"pytest ended with {status}: {output.strip().splitlines()[-1:]}"
    elif run_tests(root, [failed[1]])[0] != 0:
        why = f"{failed[1]} fails without it, too"
    else:
        return Verdict(mutant, True, failed[1], time.monotonic() - begin)
    return Verdict(mutant, False, why, time.monotonic() - begin)


def hunt(mutants: Sequence[Mutant], jobs: int) -> list[Verdict]:
    """Judges all of them, `jobs` at a time, and prints each as it is known."""
    with tempfile.TemporaryDirectory(prefix="slotmesh-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(copy_to(Path(folder, str(number))))

        def one(mutant: Mutant) -> Verdict:
            root = copies.get()
            try:
                return judge(mutant, root)
            finally:
                copies.put(root)

        verdicts: list[Verdict] = []
        with ThreadPoolExecutor(jobs) as pool:
            for done in as_completed([pool.submit(one, mutant) for mutant in mutants]):
                verdict = done.result()
                verdicts.append(verdict)
                word = "caught" if verdict.is_caught else "NOT CAUGHT"
                counted = f"{len(verdicts):3}/{len(mutants)}"
                _say(f"{counted} {word:10} {verdict.took_s:5.1f} s  {verdict.mutant.name}  ({verdict.why})")
        return verdicts


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Exit status 0 where every mutant is caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only the mutants whose names or texts hold one of these words")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    options = parser.parse_args()
    mutants = [
        it for it in MUTANTS if not options.words or any(word in f"{it.name}\n{it.text}" for word in options.words)
    ]
    if not mutants:
        parser.error("no mutant has these words")
    begin = time.monotonic()
    _say(f"{len(mutants)} mutants, each in a copy of the repository")
    verdicts = hunt(mutants, max(1, options.jobs))
    survivors = [it for it in verdicts if not it.is_caught]
    for verdict in survivors:
        _say(f"NOT CAUGHT: {verdict.mutant.name}: {verdict.mutant.text!r} -> {verdict.mutant.instead!r}: {verdict.why}")
    caught = len(verdicts) - len(survivors)
    _say(f"{caught} of {len(verdicts)} mutants caught in {time.monotonic() - begin:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
