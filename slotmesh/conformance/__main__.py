"""Runs the conformance suite against a client: `python -m slotmesh.conformance --client "node adapter.js"`.

Exit status: 0, all cases that apply were kept; 1, some were not, or none was played; 2, the adapter could not be used.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import time
from pathlib import Path
from typing import Final

from slotmesh.conformance.adapter import AdapterProcess, adapter_process
from slotmesh.conformance.case import CAPABILITIES, LEVELS, Case, load_cases
from slotmesh.conformance.player import play
from slotmesh.conformance.report import PAGE, ConformanceReport, PlayedCase, Verdict, list_lines
from slotmesh.conformance.waiting import AdapterError

_PYTHON: Final = f"{sys.executable} -m slotmesh.conformance.python_client"
_DESCRIPTION: Final = (
    "Runs the cases of docs/protocol.md against a client in any language, by an adapter: a program that takes commands "
    f"from stdin and reports outcomes to stdout, a JSON object a line. Its lines: {PAGE}, section `The adapter`."
)
UNUSABLE: Final = 2
"""Exit status if the adapter could not be used."""


async def run(command: str, level: str | None, cases: list[Case], report_path: Path | None) -> int:
    """Plays these cases. Returns the exit status."""
    report: ConformanceReport | None = None
    try:
        async with adapter_process(shlex.split(command)) as adapter:
            if (client := adapter.client) is None:
                return UNUSABLE
            report = ConformanceReport(client, level or client.level)
            capabilities = ", ".join(sorted(client.capabilities)) or "none"
            _print(f"{client.name}, level {report.level}, capabilities: {capabilities}")
            for name in client.unknown_capabilities:
                _print(f"  no case needs the capability {name!r}; there are {', '.join(sorted(CAPABILITIES))}")
            for case in cases:
                played = await _played(case, adapter, report.level)
                report.cases.append(played)
                if not played.skipped:
                    _print(played.line())
                if adapter.lost:
                    _print(*report.summary())
                    raise AdapterError(adapter.lost)
    except AdapterError as error:
        sys.stderr.write(f"{error}\n")
        return UNUSABLE
    finally:
        if report is not None and report_path is not None:
            report.save(report_path)
    _print(*report.summary())
    return 0 if report.is_kept else 1


async def _played(case: Case, adapter: AdapterProcess, level: str) -> PlayedCase:
    capabilities = adapter.client.capabilities if adapter.client is not None else ()
    if mismatch := case.mismatch(level, capabilities):
        return PlayedCase(case, Verdict.SKIPPED, skipped=mismatch)
    began = time.monotonic()
    problem = await play(case, adapter)
    return PlayedCase(case, Verdict.FAILED if problem else Verdict.KEPT, time.monotonic() - began, problem)


def _print(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m slotmesh.conformance", description=_DESCRIPTION)
    parser.add_argument(
        "--client", default=_PYTHON, help="command that starts the adapter (default: slotmesh's own client)"
    )
    parser.add_argument("--level", choices=LEVELS, help="play the cases up to this level (default: the adapter's)")
    parser.add_argument(
        "--case", default="", metavar="TEXT", help="only cases with this in their name, or of this rule"
    )
    parser.add_argument("--list", action="store_true", help="print the cases with their rules, and play none")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write JSON, or JUnit's XML if FILE ends in .xml")
    arguments = parser.parse_args()
    wanted = [case for case in load_cases() if arguments.case in case.name or arguments.case in case.rules]
    if arguments.list:
        _print(*list_lines(wanted))
        return
    sys.exit(asyncio.run(run(arguments.client, arguments.level, wanted, arguments.report)))


if __name__ == "__main__":
    main()
