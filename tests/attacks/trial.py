"""One attack on one mesh: what the bystander sees before and meanwhile, and what the processes hold before and after.

Invariants: a small round of the same attack goes before all measurements, so that pools are as large as they get; what
the bystander sees meanwhile is seen for no shorter time than the quiet before; no speed is asserted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.attacks.attack import Attack
from tests.attacks.bystander import Bystander, Seen
from tests.attacks.footprint import Footprints, footprints, peak_of, until_back
from tests.attacks.target import Target

DEFECTS: Final = ("Traceback", "rpc failed", "internal error", "never retrieved")
"""What no attack may bring into a log."""
LIMIT_S: Final = 1_200.0
"""What an attack takes at most."""
_LOG_CHARS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Trial:
    """The figures of an attack in which everything held."""

    name: str
    mesh: str
    told: str
    """What the attack did, and how that was answered."""
    took_s: float
    quiet: Seen
    under_attack: Seen
    before: Footprints
    peak: Footprints
    after: Footprints
    back_after_s: float


async def tried(attack: Attack, target: Target, bystander: Bystander, scale: float, quiet_s: float) -> Trial:
    """Raises AssertionError where the bystander was harmed, something did not come back, or an answer was wrong."""
    loop = asyncio.get_running_loop()
    log_before = len(target.mesh.log_text())
    await attack.run(target, scale * attack.warm_up)
    await asyncio.sleep(quiet_s)  # no condition to wait for: what the warm-up has left behind is part of `before`
    await bystander.seen()
    await asyncio.sleep(quiet_s)  # the time in which the bystander is measured
    quiet, before = await bystander.seen(), footprints(target.pids)
    began = loop.time()
    async with peak_of(target.pids) as peak, asyncio.timeout(LIMIT_S):
        told = await attack.run(target, scale)
    took_s = loop.time() - began
    # An attack that is over at once is looked at for as long as the quiet was: a p99 of three calls says nothing.
    await asyncio.sleep(max(0.0, quiet_s - took_s))
    under_attack = await bystander.seen()
    after, back_after_s = await until_back(target.pids, before, attack.back_s)
    afterwards = await bystander.seen()
    errors = quiet.errors + under_attack.errors + afterwards.errors
    assert not errors, f"the bystander was harmed: {errors}"
    assert target.living() == target.pids, "a process has ended"
    log = target.mesh.log_text()[log_before:]
    assert not any(each in log for each in DEFECTS), f"the log tells of a defect: {log[-_LOG_CHARS:]}"
    return Trial(
        name=attack.name,
        mesh=target.kind,
        told=told,
        took_s=took_s,
        quiet=quiet,
        under_attack=under_attack,
        before=before,
        peak=peak.most,
        after=after,
        back_after_s=back_after_s,
    )


_HEAD: Final = (
    *("attack", "mesh", "took s", "unary p50 p99", "attacked p99 worst", "stream p50 p99", "attacked p99 worst"),
    *("router MiB", "replica MiB", "controller MiB", "descriptors", "back s"),
)


def table_of(trials: Sequence[Trial]) -> str:
    """The figures, a row a trial; milliseconds, and MiB and descriptors as before → most → after."""
    rows = [_HEAD, *map(_row_of, trials)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", *(f"{each.name} ({each.mesh}): {each.told}" for each in trials)]) + "\n"


def line_of(trial: Trial) -> str:
    """The figures of one trial, as they come: who ends the campaign before its end has them."""
    return "; ".join(f"{head}: {cell}" for head, cell in zip(_HEAD[2:], _row_of(trial)[2:], strict=True))


def _row_of(trial: Trial) -> tuple[str, ...]:
    quiet, attacked = trial.quiet, trial.under_attack
    return (
        trial.name,
        trial.mesh,
        f"{trial.took_s:.1f}",
        f"{quiet.unary.p50_ms:.1f} {quiet.unary.p99_ms:.1f}",
        f"{attacked.unary.p99_ms:.1f} {attacked.unary.worst_ms:.0f}",
        f"{quiet.stream.p50_ms:.1f} {quiet.stream.p99_ms:.1f}",
        f"{attacked.stream.p99_ms:.1f} {attacked.stream.worst_ms:.0f}",
        *_held(trial),
        f"{trial.back_after_s:.1f}",
    )


def _held(trial: Trial) -> Iterator[str]:
    for name in trial.before:
        yield "→".join(f"{each[name].rss_mib:.0f}" for each in (trial.before, trial.peak, trial.after))
    router = (each["router"] for each in (trial.before, trial.peak, trial.after))
    yield "→".join(str(each.descriptors) for each in router)
