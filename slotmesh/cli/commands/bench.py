"""`slotmesh bench`: puts load on an endpoint, prints the result, and compares it with an earlier one.

Invariants: calls in flight are bounded, those in flight at the end are awaited and counted. In an open loop a call's
time begins when the call was due, so that a system that falls behind does not look faster than it is (no coordinated
omission).
Owner: the command `bench` runs one loop, closed or open.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from slotmesh.cli.connection import Peer
from slotmesh.cli.console import FAILED, WRONG_INPUT, CommandFailed, OutputForm, say
from slotmesh.cli.credentials import credentials
from slotmesh.cli.latencies import CallTally
from slotmesh.cli.parameters import ROUTER_ADDRESS, EndpointName, RouterAddress, duration, read_arguments
from slotmesh.client.mesh import connect
from slotmesh.codec import JSON
from slotmesh.errors import Reason, SlotmeshError

MAX_IN_FLIGHT: Final = 10_000

_ROUNDING_S: Final = 1e-6
_FINAL: Final = frozenset(
    {
        Reason.ENDPOINT_NOT_FOUND,
        Reason.METHOD_NOT_FOUND,
        Reason.BAD_REQUEST,
        Reason.BAD_ARGUMENTS,
        Reason.PAYLOAD_TOO_LARGE,
        Reason.NOT_IMPLEMENTED,
    }
)
"""Failures that follow from what is called, and with what."""

MakeCall = Callable[[int], Awaitable[object]]
"""Makes a call; which of the callers it is, from 0. Raises SlotmeshError."""


class BenchRun:
    """What a loop has measured."""

    def __init__(self, warm_up_s: float, duration_s: float) -> None:
        """Calls that begin, or should have begun, in the warm-up are made and not counted."""
        self.tally = CallTally()
        self.planned_s = warm_up_s + duration_s
        """From the first call to when none begins any more."""
        self.counted_from = time.monotonic() + warm_up_s
        self.until = self.counted_from + duration_s
        self.ended_at = self.until
        """When the last call that counts has ended."""
        self.unstarted = 0
        """Of an open loop: calls that should have begun and could not, as too many were under way."""

    @property
    def elapsed_s(self) -> float:
        """From the first call that counts to the end of the last."""
        return self.ended_at - self.counted_from

    async def measure(self, call: Awaitable[object], began: float) -> None:
        """Counts a call that began, or should have begun, then."""
        reason = ""
        try:
            await call
        except SlotmeshError as failure:
            reason = failure.reason.value
        now = time.monotonic()
        # Sums of seconds are exact to less than that.
        if began >= self.counted_from - _ROUNDING_S:
            self.tally.add(now - began, reason)
            self.ended_at = max(self.ended_at, now)


async def try_one(call: Awaitable[object]) -> None:
    """A call before all others. Raises SlotmeshError where each of them would fail the same way, whatever the load."""
    try:
        await call
    except SlotmeshError as failure:
        if failure.reason in _FINAL:
            raise


async def closed_loop(run: BenchRun, make_call: MakeCall, in_flight: int) -> None:
    """Runs `in_flight` callers; each makes its next call when the one before has ended."""

    async def caller(number: int) -> None:
        while (now := time.monotonic()) < run.until:
            await run.measure(make_call(number), now)
            # Calls that fail immediately would starve the other tasks of the event loop.
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for number in range(in_flight):
            tasks.create_task(caller(number))


async def open_loop(run: BenchRun, make_call: MakeCall, rate: float, callers: int) -> None:
    """Starts `rate` calls a second, whatever their outcomes; `callers` take turns, each with any number in flight."""
    began = run.until - run.planned_s
    total = round(run.planned_s * rate)
    room = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def one(number: int, due: float) -> None:
        try:
            await run.measure(make_call(number % callers), due)
        finally:
            room.release()

    async with asyncio.TaskGroup() as tasks:
        for number in range(total):
            due = began + number / rate
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + run.until - time.monotonic()):
                    await room.acquire()
            except TimeoutError:
                run.unstarted = total - number
                return
            tasks.create_task(one(number, due))


FORMAT: Final = "slotmesh-bench/1"
ROWS: Final = 16
"""Of the histogram that people see, at most."""
_BAR_CELLS: Final = 40
COMPARED: Final = ("calls_per_s", "p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms")
_LESS_IS_BETTER: Final = "_ms"


def result_document(run: BenchRun, settings: Mapping[str, Any]) -> dict[str, Any]:
    """As values of JSON. `settings`: what was called, and how."""
    return {
        "format": FORMAT,
        **settings,
        **run.tally.document(run.elapsed_s),
        "unstarted": run.unstarted,
        "histogram_ms": [[round(bound * 1e3, 4), count] for bound, count in run.tally.well.buckets()],
    }


def result_lines(run: BenchRun) -> Iterator[str]:
    """For people."""
    yield from run.tally.lines(run.elapsed_s)
    if run.unstarted:
        yield f"{run.unstarted:,} calls were due and not begun: as many as may be were under way"
    yield from _histogram(run)


def _histogram(run: BenchRun) -> Iterator[str]:
    """Buckets joined until few enough are left."""
    buckets = [*run.tally.well.buckets()]
    if not buckets:
        return
    size = -(-len(buckets) // ROWS)
    joined = [buckets[at : at + size] for at in range(0, len(buckets), size)]
    rows = [(part[-1][0], sum(count for _, count in part)) for part in joined]
    most = max(count for _, count in rows)
    for bound, count in rows:
        yield f"≤ {bound * 1e3:>9,.3g} ms {'█' * round(_BAR_CELLS * count / most):<{_BAR_CELLS}} {count:,}"


def comparison_lines(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """What is better or worse than in an earlier result."""
    for name in ("endpoint", "method", "in_flight", "rate", "ordered"):
        if now.get(name) != before.get(name):
            yield f"{name} differs: {before.get(name)} before, {now.get(name)} now"
    for name in COMPARED:
        one, another = before.get(name), now.get(name)
        if isinstance(one, int | float) and isinstance(another, int | float) and one > 0:
            change = another / one - 1
            is_worse = change > 0 if name.endswith(_LESS_IS_BETTER) else change < 0
            verdict = "" if abs(change) < 0.005 else " worse" if is_worse else " better"
            yield f"{name:<12} {one:>12,.3f} → {another:>12,.3f}  {change:+.1%}{verdict}"
    failed = [sum(it.get("failed", {}).values()) for it in (before, now)]
    if any(failed):
        yield f"{'failed':<12} {failed[0]:>12,} → {failed[1]:>12,}"


Span = Annotated[timedelta, duration("How long calls are counted.")]
WarmUp = Annotated[timedelta, duration("How long calls are made before, uncounted.", zero=True)]
Timeout = Annotated[timedelta, duration("What each call may take; then it has failed.")]
Callers = Annotated[
    int, typer.Option(min=1, max=MAX_IN_FLIGHT, help="Callers: without --rate, as many calls are under way.")
]
DueRate = Annotated[
    float | None, typer.Option(min=0.01, max=1_000_000, help="Calls a second, whatever becomes of them: an open loop.")
]
Ordered = Annotated[
    bool, typer.Option("--ordered", help="Each caller has an ordering key: its calls run one after another.")
]
SaveTo = Annotated[Path | None, typer.Option(help="Write the result there, as JSON.", dir_okay=False)]
CompareWith = Annotated[
    Path | None, typer.Option(help="Say what is better and worse than in this file.", exists=True, dir_okay=False)
]
CallArguments = Annotated[
    str, typer.Argument(metavar="JSON", help="A list of positional arguments or an object of named ones.")
]


async def bench(
    endpoint: EndpointName,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="The handler's method.")],
    arguments: CallArguments = "[]",
    *,
    in_flight: Callers = 32,
    rate: DueRate = None,
    duration: Span = timedelta(seconds=10),
    warm_up: WarmUp = timedelta(seconds=1),
    timeout: Timeout = timedelta(seconds=30),
    ordered: Ordered = False,
    output: Annotated[
        OutputForm, typer.Option("--output", "-o", help="For people, or for programs.")
    ] = OutputForm.TABLE,
    save: SaveTo = None,
    compare: CompareWith = None,
    address: RouterAddress = ROUTER_ADDRESS,
) -> None:
    """Put load on an endpoint, and say how quickly calls were answered.

    Without `--rate` it is a closed loop: each of the callers makes its next call when it has the outcome of the one
    before. With `--rate` it is an open loop: calls are due at that rate, and their time begins when they were due, so
    that what falls behind shows. Times are the client's: encoding, the way to the router and back, all in between.
    Quantiles are at most 2 % above the true ones. Calls that fail are counted by their reason, and are no times. One
    process makes the calls: it reaches some ten thousand a second, less where much else runs.

    One call goes before all others, uncounted. If there is no such endpoint or method, or the arguments do not fit,
    no further call is made: exit status 1.

    Like this:

        slotmesh bench digits classify '[[0, 12, 16, 3]]' --in-flight 64 --save before.json
        slotmesh bench digits classify '[[0, 12, 16, 3]]' --in-flight 64 --compare before.json
        slotmesh bench digits classify '[[0, 12, 16, 3]]' --rate 500 --duration 30s --ordered --output json
    """
    if output not in {OutputForm.TABLE, OutputForm.JSON}:
        raise typer.BadParameter("takes table or json", param_hint="--output")
    given, earlier = json.loads(read_arguments(arguments)), read_earlier(compare)
    if save is not None:
        _check_writable(save)
    settings = {
        "endpoint": endpoint,
        "method": method,
        "in_flight": in_flight,
        "rate": rate,
        "ordered": ordered,
        "duration_s": duration.total_seconds(),
    }
    run = await _bench(address, settings, given, warm_up.total_seconds(), timeout)
    document = result_document(run, settings)
    if output is OutputForm.JSON:
        typer.echo(json.dumps(document, indent=2))
    else:
        say("\n".join(result_lines(run)))
    for line in comparison_lines(document, earlier) if earlier is not None else ():
        say(line, err=output is OutputForm.JSON)
    if save is not None:
        save.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    if not run.tally.well.count:
        raise typer.Exit(FAILED)


async def _bench(
    address: str, settings: dict[str, Any], given: list[Any] | dict[str, Any], warm_up_s: float, timeout: timedelta
) -> BenchRun:
    async with Peer("router", address).connect():
        pass  # raises the same error as other commands if the address is unreachable
    args, named = (given, {}) if isinstance(given, list) else ([], given)
    callers: int = settings["in_flight"]
    by = credentials()
    async with connect(address, tls=by.tls, token=by.token) as mesh:
        view = mesh.endpoint(settings["endpoint"]).options(content_type=JSON, timeout=timeout)
        keyed = [view.ordered(f"bench-{number}") if settings["ordered"] else view for number in range(callers)]
        methods = [getattr(each, settings["method"]) for each in keyed]

        def make_call(number: int) -> Awaitable[object]:
            called: Awaitable[object] = methods[number](*args, **named)
            return called

        await try_one(make_call(0))
        run = BenchRun(warm_up_s, settings["duration_s"])
        if settings["rate"] is None:
            await closed_loop(run, make_call, callers)
        else:
            await open_loop(run, make_call, settings["rate"], callers)
    return run


def read_earlier(path: Path | None) -> Mapping[str, Any] | None:
    """The result in the file: read before the load is made."""
    if path is None:
        return None
    try:
        earlier = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}", WRONG_INPUT) from error
    except ValueError:
        earlier = None
    if not isinstance(earlier, Mapping) or earlier.get("format") != FORMAT:
        message = f"{path}: is no result of a bench: name a file that --save has written (format {FORMAT})"
        raise CommandFailed(message, WRONG_INPUT)
    return earlier


def _check_writable(path: Path) -> None:
    """Before the load is made: it would be lost."""
    try:
        path.open("a").close()
    except OSError as error:
        message = f"--save {path}: {error.strerror}: name a file in a folder that can be written to"
        raise CommandFailed(message, WRONG_INPUT) from error
