"""`slotmesh events`: past and new events of the mesh, as a table, as lines, or as documents."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, TextIO

import typer

from slotmesh.cli.console import Output, OutputForm, Printable, as_yaml, complete, console_of
from slotmesh.cli.event_stream import EVENT_KINDS, EventFilter, MeshEvent
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, KINDS, REVISION, ControllerAddress
from slotmesh.cli.view.report import new_table
from slotmesh.names import did_you_mean, printable_text


def printable_events(events: Sequence[MeshEvent]) -> Printable:
    """Events that have happened, oldest first. Names are the subjects, once each."""
    return Printable(
        table=partial(_print, events),
        document=lambda: {"events": [event_document(it) for it in events]},
        names=lambda: dict.fromkeys(it.subject for it in events),
    )


def write_event(event: MeshEvent, form: OutputForm, out: TextIO) -> None:
    """One event of a stream without end: a line, or a document."""
    match form:
        case OutputForm.TABLE:
            line = f"{_clock(event)}  {event.kind:<22}  {event.subject}  {event.message}"
            out.write(f"{printable_text(line)}\n")
        case OutputForm.JSON:
            out.write(json.dumps(event_document(event)) + "\n")
        case OutputForm.YAML:
            out.write(as_yaml(event_document(event), explicit_start=True))
        case OutputForm.NAME:
            out.write(f"{printable_text(event.subject)}\n")
    out.flush()


def event_document(event: MeshEvent) -> dict[str, Any]:
    """Values of JSON. The time is ISO 8601 in UTC."""
    return {
        "time": event.time.isoformat(),
        "kind": event.kind,
        "subject": event.subject,
        "message": event.message,
        "cursor": event.cursor,
    }


def _print(events: Sequence[MeshEvent], out: TextIO) -> None:
    console = console_of(out)
    if not events:
        console.print("no such events")
        return
    table = new_table("Events", "time", "kind", "subject", "what")
    for it in events:
        table.add_row(_clock(it), it.kind, it.subject, it.message)
    console.print(table)
    console.print(f"what comes after these:  slotmesh events --after {events[-1].cursor}")


def _clock(event: MeshEvent) -> str:
    return event.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _kind(text: str) -> str:
    name = text.lower().replace("_", "-")
    if name not in EVENT_KINDS:
        way_out = did_you_mean(name, EVENT_KINDS) or f"; there are {', '.join(EVENT_KINDS)}"
        raise typer.BadParameter(f"{text!r} is no kind of events{way_out}")
    return name


def _subject(text: str) -> str:
    if text and "/" not in text and not text.endswith("*"):
        way_out = " or ".join(f"{kind}/{text}" for kind in KINDS if kind != REVISION)
        raise typer.BadParameter(f"takes a subject with its kind, as {way_out}, is {text}")
    return text


def events(
    subject: Annotated[
        str,
        typer.Argument(
            parser=_subject,
            metavar="SUBJECT",
            help="Only events of `replica/ID`, `backend/NAME`, `endpoint/NAME` or `router/ID`; of all that begin so"
            " with a `*` at the end. None: of all.",
            show_default=False,
        ),
    ] = "",
    *,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            parser=_kind,
            metavar="KIND",
            help="Only events of this kind, as replica-failed. Repeat it for more.",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        str,
        typer.Option(
            metavar="CURSOR", help="Only events after that one: its `cursor` in JSON or YAML.", show_default=False
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The newest of them; 0: all.")] = 100,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show what has happened, oldest first.

    The controller keeps the newest 10,000 events; with a state file, those of earlier controllers are among them. With
    `--follow`, JSON is one document a line, and YAML one document for each event.

    Like this:

        slotmesh events --kind replica-failed --kind replica-exited
        slotmesh events 'replica/digits-v1-*' --follow -o json
    """
    wanted = EventFilter(kinds=tuple(kind or ()), subject=subject)
    try:
        complete(_show(address, wanted, after=after, lines=lines, follow=follow, form=output))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _show(address: str, wanted: EventFilter, *, after: str, lines: int, follow: bool, form: OutputForm) -> None:
    async with Operator.at(address) as operator:
        newest: deque[MeshEvent] = deque(maxlen=lines or None)
        async with aclosing(operator.events(wanted, after=after)) as past:
            async for event in past:
                _tell_missed(event)
                newest.append(event)
        if not follow:
            printable_events(newest).write(form)
            return
        for event in newest:
            write_event(event, form, sys.stdout)
        seen = newest[-1].cursor if newest else after
        async with aclosing(operator.events(wanted, after=seen, follow=True)) as coming:
            async for event in coming:
                _tell_missed(event)
                write_event(event, form, sys.stdout)


def _tell_missed(event: MeshEvent) -> None:
    if event.missed:
        count = "some" if event.missed < 0 else event.missed
        typer.echo(f"slotmesh: {count} events before this one are not kept any more", err=True)
