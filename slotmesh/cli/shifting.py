"""Shares of traffic (`v1=0.9`) and shifts as people type them; and shifts as lines and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from slotmesh.cli.console import NOT_IN_TIME, WRONG_INPUT, CommandFailed
from slotmesh.cli.controller_view import is_under_way, is_waiting
from slotmesh.cli.documents import local_time, message_document, word_of
from slotmesh.cli.operator import Operator
from slotmesh.cli.waiting import watch_operation
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.names import did_you_mean
from slotmesh.spec.model import InvalidSpec, SpecViolation, TrafficPolicy
from slotmesh.spec.rules import show, traffic_violations
from slotmesh.units import format_duration, parse_duration
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from slotmesh.v1.mesh_pb2 import Endpoint


def shift_lines(shift: shift_pb.TrafficShift) -> Iterator[str]:
    """Its progress; while it is under way, also the figures by which guards judge it."""
    if is_waiting(shift):
        yield waiting_line(shift)
        return
    line = f"shift to {_weights(shift.to_weights)}: {_phase(shift)}{local_time(shift, 'end_time', ' at %H:%M:%S')}"
    line += f", step {shift.step_number} of {shift.steps}"
    yield f"{line}: {shift.reason}" if shift.reason else f"{line}, {_terms(shift)}"
    if is_under_way(shift):
        yield from (f"  {_calls(it)}" for it in shift.figures)
        if shift.waits_for:
            yield f"  the next step waits: {shift.waits_for}"


def waiting_line(shift: shift_pb.TrafficShift) -> str:
    """What traffic waits for that moves when rollouts are complete."""
    why = shift.waits_for or f"the rollout of {', '.join(shift.awaited_backends)}"
    return f"traffic of {shift.endpoint} moves to {_weights(shift.to_weights)} later; it waits for {why}"


def shift_document(shift: shift_pb.TrafficShift) -> dict[str, Any]:
    """The shift as values of JSON: weights as `from` and `to`, guards as people write them, figures by backend."""
    figures: dict[bool, dict[str, Any]] = {False: {}, True: {}}
    for it in shift.figures:
        figures[it.shadow][it.backend] = message_document(it, leave_out={"backend", "calls", "shadow"})
        figures[it.shadow][it.backend]["copies" if it.shadow else "calls"] = it.calls
    return {
        **message_document(shift, leave_out={"from_weights", "to_weights", "guards", "figures"}),
        "from": dict(sorted(shift.from_weights.items())),
        "to": dict(sorted(shift.to_weights.items())),
        "guards": [*map(_guard_text, shift.guards)],
        "figures": figures[False],
        "shadow_figures": figures[True],
    }


def _phase(shift: shift_pb.TrafficShift) -> str:
    return word_of(shift, "phase").lower().replace("_", " ")


def _terms(shift: shift_pb.TrafficShift) -> str:
    every = f"every {format_duration(shift.every.ToTimedelta())}"
    if not shift.guards:
        return f"{every}, without guards"
    guards = " ".join(map(_guard_text, shift.guards))
    return f"{every}, guards {guards} ({shift.min_calls} calls a step at least)"


def _guard_text(guard: shift_pb.ShiftGuard) -> str:
    """A figure that only a newer controller knows is shown by its number."""
    of = f"{guard.shadow}:" if guard.shadow else ""
    if guard.figure == shift_pb.SHIFT_FIGURE_ERROR_RATE:
        return f"{of}error_rate={guard.max_error_rate:g}"
    limit = format_duration(guard.max_time.ToTimedelta())
    return f"{of}p99={limit}" if guard.figure == shift_pb.SHIFT_FIGURE_P99 else f"{of}{guard.figure}={limit}"


def _calls(it: shift_pb.ShiftFigures) -> str:
    what = "copies of calls" if it.shadow else "calls"
    line = f"{it.backend}: {it.calls} {what} in this step, {it.failed} failed, {it.unanswered} not answered"
    return f"{line}, p99 {format_duration(it.p99.ToTimedelta())} at most" if it.HasField("p99") else line


def _weights(weights: Mapping[str, float]) -> str:
    return " ".join(f"{name}={weight:.6g}" for name, weight in sorted(weights.items()))


def read_policy(
    endpoint: str,
    weights: Sequence[str],
    shadows: Sequence[str],
    *,
    no_shadows: bool = False,
    has_weights: bool = True,
    backends: Collection[str] | None = None,
) -> tuple[TrafficPolicy, tuple[str, ...]]:
    """The policy that was typed, and which of its fields change: `weights`, `shadows`.

    A shadow of 0 is none, so `c=0` alone removes all shadows, as `no_shadows` does.

    `has_weights`: there are some now, which stay unless others are given. `backends`: the names of those that exist, if
    they are known; the controller refuses others, too.

    Raises:
        InvalidSpec: with all violations in what was typed.
    """
    violations: list[SpecViolation] = []
    typed = read_shares(f"{endpoint}.traffic", weights, violations)
    copied = read_shares(f"{endpoint}.shadows", shadows, violations)
    if no_shadows and shadows:
        violations.append(SpecViolation(f"{endpoint}.shadows", "--shadow and --no-shadows contradict each other"))
    if not weights and not has_weights:
        violations.append(SpecViolation(f"{endpoint}.traffic", "there are no weights yet: give some, as v1=1"))
    policy = TrafficPolicy(weights=typed, shadows={name: share for name, share in copied.items() if share != 0.0})
    # Weights that are not given stay as they are, which is no violation.
    rules = traffic_violations(endpoint, policy)
    violations = violations or [it for it in rules if policy.weights or it.path != f"{endpoint}.traffic"]
    if violations:
        unknown = [] if backends is None else [*_unknown_backends(endpoint, policy, backends)]
        raise InvalidSpec([*violations, *unknown])
    given = {"weights": weights, "shadows": shadows or no_shadows}
    return policy, tuple(name for name, is_given in given.items() if is_given)


def _unknown_backends(endpoint: str, policy: TrafficPolicy, backends: Collection[str]) -> Iterator[SpecViolation]:
    for field, names in (("traffic", policy.weights), ("shadows", policy.shadows)):
        for name in names:
            if name not in backends:
                meant = did_you_mean(name, backends)
                yield SpecViolation(f"{endpoint}.{field}.{show(name)}", f"there is no backend {show(name)}{meant}")


def read_shares(path: str, texts: Sequence[str], violations: list[SpecViolation]) -> Mapping[str, float]:
    """Shares by backend. A text that is no share, or a backend that is given twice, is added to `violations`."""
    shares: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            equals = ""
        else:
            if name in shares:
                violations.append(SpecViolation(f"{path}.{show(name)}", "is given twice"))
            shares[name] = share
        if not (name and equals):
            violations.append(SpecViolation(path, f"expected BACKEND=SHARE such as v1=0.9, got {show(text)!r}"))
    return shares


_ATTEMPTS: Final = 10
"""The number of attempts to stop a shift while it takes steps."""
STEP: Final = 0.1
EVERY: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class TrafficChange:
    """What is typed of a change: of the policy, or of a shift."""

    weights: Sequence[str]
    shadows: Sequence[str]
    no_shadows: bool
    to: Sequence[str]
    """The weights to shift to."""
    step: float | None
    every: timedelta | None
    guards: Sequence[str]
    min_calls: int | None
    stops: bool
    goes_back: bool
    forces: bool
    """Backends that get more calls need no ready replica."""

    @property
    def is_of_policy(self) -> bool:
        return bool(self.weights or self.shadows or self.no_shadows)

    @property
    def is_of_shift(self) -> bool:
        return bool(self.to) or self.stops or self.goes_back

    def check(self, endpoint: str) -> None:
        """Raises CommandFailed where options contradict each other."""
        wrong = ""
        if sum((self.is_of_policy, bool(self.to), self.stops, self.goes_back)) > 1:
            wrong = "one at a time: weights and shadows, --shift, --shift-stop or --shift-back"
        elif not self.to and (self.guards or any(it is not None for it in (self.step, self.every, self.min_calls))):
            wrong = "--step, --every, --guard and --min-calls say how to --shift: give that, too"
        if wrong:
            raise CommandFailed(f"{endpoint}: nothing was changed\n  {wrong}", WRONG_INPUT)


async def change_shift(operator: Operator, endpoint: str, options: TrafficChange) -> int:
    """Begins or ends a shift. Returns the revision after that. Raises CommandFailed."""
    if options.to:
        return int((await operator.send(_request(endpoint, options))).revision)
    if options.goes_back:
        _require_shift(await operator.endpoint(endpoint))
        return int((await operator.send(pb.RollbackRequest(endpoint=endpoint))).revision)
    return await _stop_shift(operator, endpoint)


async def _stop_shift(operator: Operator, endpoint: str) -> int:
    """Sets the weights that the endpoint has, which ends its shift. Returns the revision after that."""
    for remaining in reversed(range(_ATTEMPTS)):
        live = await operator.endpoint(endpoint)
        _require_shift(live)
        weights = TrafficPolicy(weights=dict(live.traffic.weights))
        try:
            return await operator.set_traffic(endpoint, weights, ["weights"], etag=live.etag)
        except SlotmeshError as error:
            # A step was taken in between.
            if not remaining or error.reason is not Reason.REVISION_CONFLICT:
                raise
    raise AssertionError("the last attempt returns or raises")


def _require_shift(live: Endpoint) -> None:
    """Raises CommandFailed if no shift of the endpoint is under way."""
    if not is_under_way(live.status.shift):
        text = f"no shift of {live.name} is under way; `slotmesh rollback` undoes one that has ended"
        raise CommandFailed(f"{text}, if it is the newest change")


async def follow_shift(operator: Operator, endpoint: str, patience: timedelta | None) -> None:
    """Shows how far a shift is until it has got there. `patience`: how long to wait; None: until it ends.

    Raises CommandFailed where it ends elsewhere, or not in time.
    """
    shift = await watch_operation(operator, f"shift/{endpoint}", endpoint, patience)
    if shift.failure:
        raise CommandFailed(f"{endpoint}: {shift.failure}", NOT_IN_TIME)
    if not shift.done:
        after, left = format_duration(patience or timedelta()), "; ".join(shift.pending)
        raise CommandFailed(f"{endpoint}: not complete after {after}, and goes on: {left}", NOT_IN_TIME)


def _request(endpoint: str, options: TrafficChange) -> pb.ShiftTrafficRequest:
    violations: list[SpecViolation] = []
    request = pb.ShiftTrafficRequest(
        endpoint=endpoint,
        weights=read_shares(f"{endpoint}.shift", options.to, violations),
        step=STEP if options.step is None else options.step,
        guards=[guard for text in options.guards if (guard := _guard(text, violations)) is not None],
        min_calls=options.min_calls or 0,
        require_ready=not options.forces,
    )
    request.every.FromTimedelta(options.every or EVERY)
    if violations:
        raise CommandFailed("\n  ".join([f"{endpoint}: nothing was changed", *map(str, violations)]), WRONG_INPUT)
    return request


def _guard(text: str, violations: list[SpecViolation]) -> shift_pb.ShiftGuard | None:
    named, _, limit = text.partition("=")
    shadow, colon, figure = named.rpartition(":")
    try:
        if colon and not shadow:
            figure = ""
        if figure == "error_rate":
            return shift_pb.ShiftGuard(
                figure=shift_pb.SHIFT_FIGURE_ERROR_RATE, max_error_rate=float(limit), shadow=shadow
            )
        if figure == "p99":
            guard = shift_pb.ShiftGuard(figure=shift_pb.SHIFT_FIGURE_P99, shadow=shadow)
            guard.max_time.FromTimedelta(parse_duration(limit))
            return guard
    except ValueError:
        pass  # reported below, with the figures that exist
    expected = "error_rate=SHARE or p99=DURATION, as p99=200ms, or of a shadow, as dark:p99=200ms"
    violations.append(SpecViolation("--guard", f"expected {expected}, got {show(text)!r}"))
    return None
