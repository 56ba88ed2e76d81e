"""Attacks on a mesh of processes, while a bystander goes on calling it.

    python -m tests.attacks [ATTACK ...] [--scale 1.0]

Exit status 1 where the bystander was harmed, an answer was wrong, or memory or descriptors did not come back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback
from collections.abc import Sequence

from tests.attacks.attack import Attack
from tests.attacks.bystander import bystander_of
from tests.attacks.catalogue import ATTACKS
from tests.attacks.target import target_of
from tests.attacks.trial import Trial, line_of, table_of, tried


async def campaign(attacks: Sequence[Attack], scale: float, quiet_s: float) -> tuple[list[Trial], int]:
    """All of them, on a mesh in plain text and on one by TLS; returns the figures, and how many have failed."""
    trials: list[Trial] = []
    failed = 0
    for by_tls in (False, True):
        async with target_of(by_tls=by_tls) as target:
            for attack in attacks:
                sys.stdout.write(f"{attack.name} ({target.kind})\n")
                sys.stdout.flush()
                try:
                    async with bystander_of(target.router, str(target.directory) if target.directory else None) as seen:
                        trials.append(await tried(attack, target, seen, scale, quiet_s))
                    sys.stdout.write(f"{trials[-1].told}\n{line_of(trials[-1])}\n")
                    sys.stdout.flush()
                except Exception:  # noqa: BLE001 - whatever it is, the other attacks are made, and the status tells
                    sys.stdout.write(f"FAILED\n{traceback.format_exc()}")
                    failed += 1
    return trials, failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__.partition("\n")[0])
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"all without: {', '.join(ATTACKS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of each attack (1.0)")
    parser.add_argument("--quiet-seconds", type=float, default=5.0, help="measured before each attack (5)")
    given = parser.parse_args()
    if unknown := set(given.attacks) - ATTACKS.keys():
        parser.error(f"no such attack: {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    chosen = [ATTACKS[name] for name in given.attacks or ATTACKS]
    trials, failed = asyncio.run(campaign(chosen, given.scale, given.quiet_seconds))
    sys.stdout.write(table_of(trials))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
