"""`make fuzz`: each target for some seconds, one process after another; ends with status 1 where something was found.

    python -m tests.fuzz --seconds 20 payloads rpcs-SlotService

Words choose the targets whose names contain one of them. With atheris inputs follow what they cover in the code; where
it is not installed (it has wheels for few interpreters), hypothesis makes them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.fuzz.hunt import has_atheris
from tests.fuzz.targets import TARGETS

START_S: Final = 120
"""That a process may take beyond its seconds."""


def hunt(target: str, engine: str, seconds: int, found: Path) -> dict[str, Any]:
    """The figures of one target; `error` where its process ended by itself."""
    command = [sys.executable, "-m", "tests.fuzz.hunt", target, "--engine", engine]
    command += ["--seconds", str(seconds), "--found", str(found / target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + START_S)
    except subprocess.TimeoutExpired:
        return {"executions": 0, "found": {}, "error": "it has not ended"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"executions"')]
    if not lines:
        return {"executions": 0, "found": {}, "error": f"status {done.returncode}: {done.stdout[-500:]}"}
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--seconds", type=int, default=20, help="for each target (20)")
    parser.add_argument("--engine", choices=["atheris", "hypothesis"])
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time (2)")
    given = parser.parse_args()
    engine = given.engine or ("atheris" if has_atheris() else "hypothesis")
    targets = [name for name in TARGETS if not given.words or any(word in name for word in given.words)]
    found = Path(tempfile.mkdtemp(prefix="slotmesh-fuzz-"))
    print(f"{len(targets)} targets, {given.seconds} s each, with {engine}; what is found goes to {found}", flush=True)
    executions = problems = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        hunts = [(name, pool.submit(hunt, name, engine, given.seconds, found)) for name in targets]
        for name, figures in ((name, each.result()) for name, each in hunts):
            told = [f"{where} in {found / name / file}" for where, file in figures["found"].items()]
            told += [figures["error"]] if "error" in figures else []
            executions, problems = executions + figures["executions"], problems + len(told)
            print(f"  {name:48} {figures['executions']:>10,}  {'; '.join(told) or 'nothing found'}", flush=True)
    print(f"{executions:,} inputs, {problems} findings")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
