"""Shares of traffic (`v1=0.9`) and shifts as people type them; and shifts as lines, as a progress bar, and as JSON."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, TextIO

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from slotmesh.cli.console import NOT_IN_TIME, WRONG_INPUT, CommandFailed, PrintableConsole
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import read_duration
from slotmesh.cli.snapshot import ShiftStatus, StepCalls
from slotmesh.names import did_you_mean
from slotmesh.spec.model import InvalidSpec, SpecViolation, TrafficPolicy
from slotmesh.spec.rules import show, traffic_violations
from slotmesh.units import format_duration, parse_duration
from slotmesh.v1 import controller_service_pb2 as pb


def shift_lines(shift: ShiftStatus) -> Iterator[str]:
    """How it is; while it is under way, what it is judged by, too."""
    phase = shift.phase.lower().replace("_", " ")
    at = "" if shift.end_time is None else shift.end_time.astimezone().strftime(" at %H:%M:%S")
    if shift.is_waiting:
        yield waiting_line(shift)
        return
    line = f"shift to {_weights(shift.to_weights)}: {phase}{at}, step {shift.step_number} of {shift.steps}"
    yield f"{line}: {shift.reason}" if shift.reason else f"{line}, {_terms(shift)}"
    if shift.is_under_way:
        yield from (f"  {_calls(it)}" for it in shift.figures)
        if shift.waits_for:
            yield f"  the next step waits: {shift.waits_for}"


def waiting_line(shift: ShiftStatus) -> str:
    """What traffic waits for that moves when rollouts are complete."""
    why = shift.waits_for or f"the rollout of {', '.join(shift.awaited_backends)}"
    return f"traffic of {shift.endpoint} moves to {_weights(shift.to_weights)} later; it waits for {why}"


def shift_as_json(shift: ShiftStatus) -> dict[str, Any]:
    """The same, as values of JSON. Times are ISO 8601 in UTC."""
    return {
        "endpoint": shift.endpoint,
        "phase": shift.phase,
        "from": dict(shift.from_weights),
        "to": dict(shift.to_weights),
        "step_number": shift.step_number,
        "steps": shift.steps,
        "every_s": shift.every_s,
        "guards": [*shift.guards],
        "min_calls": shift.min_calls,
        "start_time": shift.start_time.isoformat(),
        "step_time": shift.step_time.isoformat(),
        "end_time": None if shift.end_time is None else shift.end_time.isoformat(),
        "who": shift.who,
        "reason": shift.reason,
        "waits_for": shift.waits_for,
        "awaited_backends": [*shift.awaited_backends],
        "figures": {
            it.backend: {"calls": it.calls, "failed": it.failed, "unanswered": it.unanswered, "p99_s": it.p99_s}
            for it in shift.figures
            if not it.is_shadow
        },
        "shadow_figures": {
            it.backend: {"copies": it.calls, "failed": it.failed, "unanswered": it.unanswered, "p99_s": it.p99_s}
            for it in shift.figures
            if it.is_shadow
        },
    }


class ShiftBar:
    """A bar that fills step by step, on a terminal; nothing elsewhere."""

    def __init__(self, out: TextIO) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        self._bar = Progress(
            *columns, TimeElapsedColumn(), console=PrintableConsole(file=out), disable=not out.isatty(), transient=True
        )
        self._task: TaskID | None = None

    def __enter__(self) -> ShiftBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, shift: ShiftStatus) -> None:
        if self._task is None:
            self._task = self._bar.add_task(shift.endpoint, total=shift.steps, left="")
        left = shift.waits_for or "; ".join(map(_calls, shift.figures))
        self._bar.update(self._task, completed=shift.step_number, total=shift.steps, left=left)


def _terms(shift: ShiftStatus) -> str:
    every = f"every {format_duration(timedelta(seconds=shift.every_s))}"
    if not shift.guards:
        return f"{every}, without guards"
    return f"{every}, guards {' '.join(shift.guards)} ({shift.min_calls} calls a step at least)"


def _calls(it: StepCalls) -> str:
    what = "copies of calls" if it.is_shadow else "calls"
    line = f"{it.backend}: {it.calls} {what} in this step, {it.failed} failed, {it.unanswered} not answered"
    return line if it.p99_s is None else f"{line}, p99 {format_duration(timedelta(seconds=it.p99_s))} at most"


def _weights(weights: Mapping[str, float]) -> str:
    return " ".join(f"{name}={weight:.6g}" for name, weight in sorted(weights.items()))


@dataclass(frozen=True, slots=True)
class SaidPolicy:
    """A requested change of a traffic policy."""

    policy: TrafficPolicy
    """Weights and shadows that are not given stay as they are."""
    clear_shadows: bool = False
    """There should be no shadows."""


def said_policy(
    endpoint: str,
    current: TrafficPolicy | None,
    weights: Sequence[str],
    shadows: Sequence[str],
    *,
    no_shadows: bool = False,
    backends: Collection[str] | None = None,
) -> SaidPolicy:
    """The policy that was typed. A shadow of 0 is none, so `c=0` alone removes all shadows, as `no_shadows` does.

    `current` is the policy now; it only decides whether there are weights to keep. `backends`: the names of those that
    exist, if they are known; the controller refuses others, too.

    Raises:
        InvalidSpec: with all violations in what was typed.
    """
    mistakes: list[SpecViolation] = []
    said = read_shares(f"{endpoint}.traffic", weights, mistakes)
    cast = read_shares(f"{endpoint}.shadows", shadows, mistakes)
    if no_shadows and shadows:
        mistakes.append(SpecViolation(f"{endpoint}.shadows", "--shadow and --no-shadows contradict each other"))
    if not weights and (current is None or not current.weights):
        mistakes.append(SpecViolation(f"{endpoint}.traffic", "there are no weights yet: give some, as v1=1"))
    policy = TrafficPolicy(weights=said, shadows={name: share for name, share in cast.items() if share != 0.0})
    if mistakes := mistakes or [*_mistakes_of(endpoint, policy)]:
        unknown = [] if backends is None else [*_unknown_backends(endpoint, policy, backends)]
        raise InvalidSpec([*mistakes, *unknown])
    return SaidPolicy(policy, clear_shadows=no_shadows or bool(shadows and not policy.shadows))


def _mistakes_of(endpoint: str, policy: TrafficPolicy) -> Iterator[SpecViolation]:
    """Violations in what was typed. Weights that are not given stay as they are, which is no violation."""
    for mistake in traffic_violations(endpoint, policy):
        if policy.weights or mistake.path != f"{endpoint}.traffic":
            yield mistake


def _unknown_backends(endpoint: str, policy: TrafficPolicy, backends: Collection[str]) -> Iterator[SpecViolation]:
    for field, names in (("traffic", policy.weights), ("shadows", policy.shadows)):
        for name in names:
            if name not in backends:
                meant = did_you_mean(name, backends)
                yield SpecViolation(f"{endpoint}.{field}.{show(name)}", f"there is no backend {show(name)}{meant}")


def read_shares(path: str, texts: Sequence[str], mistakes: list[SpecViolation]) -> Mapping[str, float]:
    """Shares by backend. A text that is no share, or a backend that is given twice, is added to `mistakes`."""
    shares: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            equals = ""
        else:
            if name in shares:
                mistakes.append(SpecViolation(f"{path}.{show(name)}", "is given twice"))
            shares[name] = share
        if not (name and equals):
            mistakes.append(SpecViolation(path, f"expected BACKEND=SHARE such as v1=0.9, got {show(text)!r}"))
    return shares


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
    mistakes: list[SpecViolation] = []
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
        mistakes.append(SpecViolation("--min-calls", f"must be 1 or more, is {said.min_calls}"))
    if mistakes:
        raise CommandFailed("\n  ".join([f"{endpoint}: nothing was changed", *map(str, mistakes)]), WRONG_INPUT)
    return request


def _guard(text: str, mistakes: list[SpecViolation]) -> pb.ShiftGuard | None:
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
        pass  # reported below, with the figures that exist
    expected = "error_rate=SHARE or p99=DURATION, as p99=200ms, or of a shadow, as dark:p99=200ms"
    mistakes.append(SpecViolation("--guard", f"expected {expected}, got {show(text)!r}"))
    return None
