"""Shifts of traffic as people type them, and what commands do with them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

import typer

from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import NOT_IN_TIME, WRONG_INPUT, CommandFailed
from slotmesh.cli.parameters import read_duration
from slotmesh.cli.shares import read_shares
from slotmesh.cli.snapshot import ShiftStatus
from slotmesh.cli.view.shifts import ShiftBar
from slotmesh.spec.model import Mistake
from slotmesh.spec.rules import show
from slotmesh.units import format_duration, parse_duration
from slotmesh.v1 import controller_service_pb2 as pb

POLL_S: Final = 0.2
STEP: Final = 0.1
EVERY: Final = timedelta(seconds=30)

ShiftTo = Annotated[
    list[str] | None,
    typer.Option(
        metavar="BACKEND=WEIGHT",
        help="Shift to this weight step by step; the other backends share what is left. Repeat it for more.",
        show_default=False,
    ),
]
ShiftStep = Annotated[
    float | None, typer.Option(metavar="SHARE", help="By how much weights change in a step.", show_default="0.1")
]
ShiftEvery = Annotated[
    timedelta | None,
    typer.Option(parser=read_duration, metavar="DURATION", show_default="30s", help="How long a step lasts at least."),
]
ShiftGuards = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIGURE=LIMIT",
        help="Go back when error_rate=SHARE or p99=DURATION of a backend that gets more is above this; of a shadow with"
        " its name before it, as dark:error_rate=0.05. Repeat it.",
        show_default=False,
    ),
]
ShiftMinCalls = Annotated[
    int | None,
    typer.Option(metavar="N", help="Calls that must have ended in a step for guards to pass it.", show_default="100"),
]
StopShift = Annotated[bool, typer.Option("--shift-stop", help="End the shift where it is.")]
BackShift = Annotated[bool, typer.Option("--shift-back", help="End the shift, with the weights before it.")]


@dataclass(frozen=True, slots=True)
class ShiftOptions:
    """What is typed of shifts."""

    to: Sequence[str]
    step: float | None
    every: timedelta | None
    guards: Sequence[str]
    min_calls: int | None
    stops: bool
    goes_back: bool
    forces: bool = False
    """Backends that get more calls need no ready replica."""

    @property
    def are_given(self) -> bool:
        return bool(self.to) or self.stops or self.goes_back

    def check(self, endpoint: str, *, changes_policy: bool) -> None:
        """Raises CommandFailed where options contradict each other."""
        wrong = ""
        if sum((changes_policy, bool(self.to), self.stops, self.goes_back)) > 1:
            wrong = "one at a time: weights and shadows, --shift, --shift-stop or --shift-back"
        elif not self.to and (self.guards or any(it is not None for it in (self.step, self.every, self.min_calls))):
            wrong = "--step, --every, --guard and --min-calls say how to --shift: give that, too"
        if wrong:
            raise CommandFailed(f"{endpoint}: nothing was changed\n  {wrong}", WRONG_INPUT)


async def change_shift(operator: Operator, endpoint: str, said: ShiftOptions) -> int:
    """Begins or ends a shift. Returns the revision after that. Raises CommandFailed."""
    if said.to:
        return await operator.shift_traffic(_request(endpoint, said))
    return await operator.end_shift(endpoint, goes_back=said.goes_back)


async def follow_shift(operator: Operator, endpoint: str, patience: timedelta | None) -> ShiftStatus:
    """Shows how far a shift is until it has got there. `patience`: how long to wait; None: until it ends.

    Raises CommandFailed where it ends elsewhere, or not in time.
    """
    loop = asyncio.get_running_loop()
    deadline = None if patience is None else loop.time() + patience.total_seconds()
    with ShiftBar(sys.stdout) as bar:
        while True:
            shift = await operator.shift(endpoint)
            if shift is None:
                raise CommandFailed(f"{endpoint}: the shift is gone, with its endpoint", NOT_IN_TIME)
            bar.show(shift)
            if shift.is_there:
                return shift
            if not shift.is_under_way:
                raise CommandFailed(f"{endpoint}: {shift.phase.lower().replace('_', ' ')}: {shift.reason}", NOT_IN_TIME)
            if deadline is not None and loop.time() >= deadline:
                raise CommandFailed(_late(shift, patience or timedelta()), NOT_IN_TIME)
            await asyncio.sleep(POLL_S)


def _late(shift: ShiftStatus, patience: timedelta) -> str:
    line = (
        f"{shift.endpoint}: after {format_duration(patience)} at step {shift.step_number} of {shift.steps}, and goes on"
    )
    return f"{line}; the next step waits: {shift.waits_for}" if shift.waits_for else line


def _request(endpoint: str, said: ShiftOptions) -> pb.ShiftTrafficRequest:
    mistakes: list[Mistake] = []
    request = pb.ShiftTrafficRequest(
        endpoint=endpoint,
        weights=read_shares(f"{endpoint}.shift", said.to, mistakes),
        step=STEP if said.step is None else said.step,
        guards=[guard for text in said.guards if (guard := _guard(text, mistakes)) is not None],
        min_calls=said.min_calls or 0,
        require_ready=not said.forces,
    )
    request.every.FromTimedelta(said.every or EVERY)
    if said.min_calls is not None and said.min_calls < 1:
        mistakes.append(Mistake("--min-calls", f"must be 1 or more, is {said.min_calls}"))
    if mistakes:
        raise CommandFailed("\n  ".join([f"{endpoint}: nothing was changed", *map(str, mistakes)]), WRONG_INPUT)
    return request


def _guard(text: str, mistakes: list[Mistake]) -> pb.ShiftGuard | None:
    named, _, limit = text.partition("=")
    shadow, colon, figure = named.rpartition(":")
    try:
        if colon and not shadow:
            figure = ""
        if figure == "error_rate":
            return pb.ShiftGuard(figure=pb.SHIFT_FIGURE_ERROR_RATE, max_error_rate=float(limit), shadow=shadow)
        if figure == "p99":
            guard = pb.ShiftGuard(figure=pb.SHIFT_FIGURE_P99, shadow=shadow)
            guard.max_time.FromTimedelta(parse_duration(limit))
            return guard
    except ValueError:
        pass  # said below, with the figures that there are
    expected = "error_rate=SHARE or p99=DURATION, as p99=200ms, or of a shadow, as dark:p99=200ms"
    mistakes.append(Mistake("--guard", f"expected {expected}, got {show(text)!r}"))
    return None
