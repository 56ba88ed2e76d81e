"""Checks a recorded history: `python -m tests.history FOLDER`. Exit status 1 where something does not hold."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.history.checker import check, told
from tests.history.log import read_history
from tests.history.model import Load
from tests.history.summary import summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("folder", type=Path, help="with clients.jsonl and executions.jsonl")
    parser.add_argument("--clients", type=int, default=1, help="clients that had to be served before the first fault")
    parser.add_argument("--rate", type=float, default=1.0, help="outcomes per second before the first fault")
    arguments = parser.parse_args()
    history = read_history(arguments.folder)
    sys.stdout.write(summary(history, str(arguments.folder)) + "\n")
    violations = check(history, Load(clients=arguments.clients, outcomes_per_s=arguments.rate))
    sys.stdout.write((told(violations) if violations else "everything holds") + "\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
