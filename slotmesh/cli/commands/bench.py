"""`slotmesh bench`: load on an endpoint, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from slotmesh.cli.arguments import BadJson, read_arguments
from slotmesh.cli.bench.loops import MAX_IN_FLIGHT, BenchRun, closed_loop, open_loop, try_one
from slotmesh.cli.bench.results import NotComparable, comparison_lines, result_document, result_lines
from slotmesh.cli.connection import Peer
from slotmesh.cli.credentials import credentials
from slotmesh.cli.outcome import FAILED, WRONG_INPUT, complete
from slotmesh.cli.output import OutputForm
from slotmesh.cli.parameters import ROUTER, RouterAddress, read_call_duration, read_duration
from slotmesh.cli.saying import say
from slotmesh.cli.subjects import ENDPOINT, name_of
from slotmesh.client.mesh import connect
from slotmesh.codec import JSON

Span = Annotated[timedelta, typer.Option(parser=read_duration, metavar="DURATION", help="How long calls are counted.")]
WarmUp = Annotated[
    timedelta,
    typer.Option(parser=read_call_duration, metavar="DURATION", help="How long calls are made before, uncounted."),
]
Timeout = Annotated[
    timedelta,
    typer.Option(parser=read_duration, metavar="DURATION", help="What each call may take; then it has failed."),
]

Callers = Annotated[
    int, typer.Option(min=1, max=MAX_IN_FLIGHT, help="Callers: without --rate, as many calls are under way.")
]
DueRate = Annotated[
    float | None,
    typer.Option(min=0.01, max=1_000_000, help="Calls a second, whatever becomes of them: an open loop."),
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


def bench(
    endpoint: Annotated[str, typer.Argument(parser=name_of(ENDPOINT), metavar="ENDPOINT", help="The endpoint's name.")],
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
    address: RouterAddress = ROUTER,
) -> None:
    """Put load on an endpoint, and say how quickly calls were answered.

    Without `--rate` it is a closed loop: each of the callers makes its next call when it has the outcome of the one
    before. With `--rate` it is an open loop: calls are due at that rate, and their time begins when they were due, so
    that what falls behind shows. Times are the client's: encoding, the way to the router and back, all in between.
    Quantiles are at most 2 % above the true ones. Calls that fail are counted by their reason, and are no times. One
    process makes the calls: it reaches some ten thousand a second, less where much else runs.

    One call goes before all others, uncounted. Where there is no such endpoint or method, or the arguments are not
    what it takes, that call is all: exit status 1.

    Like this:

        slotmesh bench digits classify '[[0, 12, 16, 3]]' --in-flight 64 --save before.json
        slotmesh bench digits classify '[[0, 12, 16, 3]]' --in-flight 64 --compare before.json
        slotmesh bench digits classify '[[0, 12, 16, 3]]' --rate 500 --duration 30s --ordered --output json
    """
    if output not in {OutputForm.TABLE, OutputForm.JSON}:
        raise typer.BadParameter("takes table or json", param_hint="--output")
    given, earlier = _read(arguments), _read_earlier(compare)
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
    run = complete(_bench(address, settings, given, warm_up.total_seconds(), timeout))
    document = result_document(run, settings)
    if output is OutputForm.JSON:
        typer.echo(json.dumps(document, indent=2))
    else:
        say("\n".join(result_lines(run)))
    if compare is not None:
        _print_comparison(document, earlier, compare, err=output is OutputForm.JSON)
    if save is not None:
        save.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    if not run.tally.well.count:
        raise typer.Exit(FAILED)


def _print_comparison(now: dict[str, Any], before: object, path: Path, *, err: bool) -> None:
    try:
        for line in comparison_lines(now, before):
            say(line, err=err)
    except NotComparable as mistake:
        typer.echo(f"{path} {mistake}", err=True)
        raise typer.Exit(WRONG_INPUT) from None


async def _bench(
    address: str, settings: dict[str, Any], given: list[Any] | dict[str, Any], warm_up_s: float, timeout: timedelta
) -> BenchRun:
    async with Peer("router", address).connect():
        pass  # what cannot be reached is said in the words of all commands
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


def _read(arguments: str) -> list[Any] | dict[str, Any]:
    try:
        given: list[Any] | dict[str, Any] = json.loads(read_arguments(arguments))
    except BadJson as mistake:
        say(mistake, err=True)
        raise typer.Exit(WRONG_INPUT) from mistake
    return given


def _read_earlier(path: Path | None) -> object:
    """What the file has: looked at before the load is made."""
    if path is None:
        return None
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        typer.echo(f"{path}: {error.strerror}", err=True)
        raise typer.Exit(WRONG_INPUT) from error
    except ValueError as error:
        typer.echo(f"{path}: is no result of a bench: name a file that --save has written", err=True)
        raise typer.Exit(WRONG_INPUT) from error


def _check_writable(path: Path) -> None:
    """Before the load is made: it would be lost."""
    try:
        path.open("a").close()
    except OSError as error:
        typer.echo(f"--save {path}: {error.strerror}: name a file in a folder that can be written to", err=True)
        raise typer.Exit(WRONG_INPUT) from error
