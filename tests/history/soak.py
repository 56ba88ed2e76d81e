"""The fault scenarios of sessions, as long as one likes.

python -m tests.history.soak routers-killed --seconds 60

Without a name: all of them. The recorded histories stay in `--folder`, to be looked at, and to be checked again by
`python -m tests.history FOLDER`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.e2e.session_scenarios import SCENARIOS, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.history.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long things are broken (default: 60)")
    parser.add_argument("--folder", type=Path, help="where histories go (default: a new one)")
    arguments = parser.parse_args()
    if unknown := set(arguments.scenarios) - SCENARIOS.keys():
        parser.error(f"there is no scenario {', '.join(sorted(unknown))}")
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="slotmesh-soak-"))
    failed = [name for name in arguments.scenarios or SCENARIOS if not _survives(name, arguments.seconds, folder)]
    sys.stdout.write(f"\nfailed: {', '.join(failed)}\n" if failed else "\neverything was survived\n")
    return 1 if failed else 0


def _survives(name: str, seconds: float, folder: Path) -> bool:
    own = folder / name
    own.mkdir(parents=True)
    try:
        asyncio.run(run(name, seconds, own, patience=1.0))
    except AssertionError as error:
        sys.stdout.write(f"{name} FAILED: {error}\n")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
