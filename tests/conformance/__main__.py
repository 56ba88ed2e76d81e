"""Runs the cases against a client: `python -m tests.conformance --client "node adapter.js" --level windowed`.

Prints a line a case and what was wrong; ends with status 1 if a case failed.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import time
from collections import Counter

from tests.conformance.case import LEVELS, Case, load_cases
from tests.conformance.client import ClientFault, ClientProcess, client_process
from tests.conformance.player import play

_PYTHON = f"{sys.executable} -m tests.conformance.python_adapter"


async def run(command: str, level: str | None, wanted: str) -> int:
    """Plays the cases whose names contain `wanted`. Returns the exit status."""
    cases = [case for case in load_cases() if wanted in case.name]
    tally: Counter[str] = Counter()
    while cases:  # an adapter that ended is started again
        try:
            async with client_process(shlex.split(command), sys.stderr) as client:
                await _play_all(cases, client, level, tally)
        except ClientFault as fault:
            sys.stderr.write(f"{fault}\n")
            return 1
    sys.stdout.write(", ".join(f"{count} {verdict}" for verdict, count in sorted(tally.items())) + "\n")
    return 1 if tally["failed"] or not tally["kept"] else 0


async def _play_all(cases: list[Case], client: ClientProcess, level: str | None, tally: Counter[str]) -> None:
    """Takes cases off the list until it is empty, or the adapter has ended."""
    identity = client.identity
    if identity is None:
        return
    sys.stdout.write(f"{identity.name}, {level or identity.level}, features: {sorted(identity.features)}\n")
    while cases and not client.ended:
        case = cases.pop(0)
        began = time.monotonic()
        verdict, problem = "not for it", ""
        if case.fits(level or identity.level, identity.features):
            try:
                await play(case, client)
                verdict = "kept"
            except AssertionError as error:
                verdict, problem = "failed", f"\n    {case.about}\n    {error}"
        tally[verdict] += 1
        sys.stdout.write(f"  {verdict:<10}  {case.name:<36}  {time.monotonic() - began:5.2f} s{problem}\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--client", default=_PYTHON, help="command of the client's adapter (default: the Python SDK's)")
    parser.add_argument("--level", choices=LEVELS, help="up to this level (default: what the adapter says)")
    parser.add_argument("--case", default="", help="only cases with this in their name")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(run(arguments.client, arguments.level, arguments.case)))


if __name__ == "__main__":
    main()
