"""`slotmesh events`: past and new events of the mesh, as a table, as lines, or as documents."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Final, TextIO

import typer

from slotmesh.cli.console import Output, OutputForm, Printable, TableColumns, as_yaml, console_of, table_of
from slotmesh.cli.documents import enum_word, local_time, message_document, word_of
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, KINDS, REVISION, ControllerAddress
from slotmesh.names import did_you_mean, printable_text
from slotmesh.v1 import controller_service_pb2 as pb

_COLUMNS: Final[TableColumns[pb.WatchEventsResponse]] = {
    "time": lambda it: local_time(it, "time"),
    "kind": lambda it: word_of(it, "kind"),
    "resource": lambda it: it.resource,
    "what": lambda it: it.message,
}


def printable_events(events: Sequence[pb.WatchEventsResponse]) -> Printable:
    """Events that have happened, oldest first. Names are the subjects, once each."""
    return Printable(
        table=partial(_print, events),
        document=lambda: {"events": [event_document(it) for it in events]},
        names=lambda: dict.fromkeys(it.resource for it in events),
    )


def write_event(event: pb.WatchEventsResponse, form: OutputForm, out: TextIO) -> None:
    """One event of a stream without end: a line, or a document."""
    match form:
        case OutputForm.TABLE:
            time, kind, subject, what = (str(cell(event)) for cell in _COLUMNS.values())
            out.write(f"{printable_text(f'{time}  {kind:<22}  {subject}  {what}')}\n")
        case OutputForm.JSON:
            out.write(json.dumps(event_document(event)) + "\n")
        case OutputForm.YAML:
            out.write(as_yaml(event_document(event), explicit_start=True))
        case OutputForm.NAME:
            out.write(f"{printable_text(event.resource)}\n")
    out.flush()


def event_document(event: pb.WatchEventsResponse) -> dict[str, Any]:
    return message_document(event, leave_out={"missed"})


def _print(events: Sequence[pb.WatchEventsResponse], out: TextIO) -> None:
    console = console_of(out)
    if not events:
        console.print("no such events")
        return
    console.print(table_of("Events", _COLUMNS, events))
    console.print(f"what comes after these:  slotmesh events --after {events[-1].cursor}")


def _kind(text: str) -> pb.EventKind.ValueType:
    numbers = {enum_word(pb.EventKind.DESCRIPTOR, it): it for it in pb.EventKind.values() if it}
    name = text.lower().replace("_", "-")
    if name not in numbers:
        way_out = did_you_mean(name, numbers) or f"; there are {', '.join(numbers)}"
        raise typer.BadParameter(f"{text!r} is no kind of events{way_out}")
    return numbers[name]


def _subject(text: str) -> str:
    if text and "/" not in text and not text.endswith("*"):
        way_out = " or ".join(f"{kind}/{text}" for kind in KINDS if kind != REVISION)
        raise typer.BadParameter(f"takes a subject with its kind, as {way_out}, is {text}")
    return text


async def events(
    subject: Annotated[
        str,
        typer.Argument(
            parser=_subject,
            metavar="SUBJECT",
            help="Only events of `replica/ID`, `backend/NAME`, `endpoint/NAME` or `router/ID`; a `*` at the end: all"
            " that begin so. Default: all events.",
        ),
    ] = "",
    *,
    kind: Annotated[
        list[Any] | None,
        typer.Option(
            parser=_kind, metavar="KIND", help="Only events of this kind, as replica-failed. Repeat it for more."
        ),
    ] = None,
    after: Annotated[
        str, typer.Option(metavar="CURSOR", help="Only events after that one: its `cursor` in JSON or YAML.")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones, until Ctrl-C.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=1_000_000, help="The newest of them; 0: all.")
    ] = 100,
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
    wanted = pb.WatchEventsRequest(kinds=kind or (), resource_prefix=subject.removesuffix("*"), until_newest=True)
    _start(wanted, after)
    # The controller compares only the beginning of a whole name.
    exact = "" if subject.endswith("*") else subject
    async with Operator.at(address) as operator:
        newest: deque[pb.WatchEventsResponse] = deque(maxlen=lines or None)
        async for event in _events(operator, wanted, exact):
            newest.append(event)
        if not follow:
            printable_events(newest).write(output)
            return
        for event in newest:
            write_event(event, output, sys.stdout)
        wanted.until_newest = False
        _start(wanted, newest[-1].cursor if newest else after)
        async with aclosing(_events(operator, wanted, exact)) as coming:
            async for event in coming:
                write_event(event, output, sys.stdout)


def _start(wanted: pb.WatchEventsRequest, after: str) -> None:
    """`after`: the cursor of an event; empty: all that are kept."""
    if after:
        wanted.after = after
    else:
        wanted.from_oldest = True


async def _events(
    operator: Operator, wanted: pb.WatchEventsRequest, exact: str
) -> AsyncGenerator[pb.WatchEventsResponse, None]:
    """`exact`: the subject; empty: any."""
    async with aclosing(operator.stream(wanted)) as responses:
        async for event in responses:
            if exact in {"", event.resource}:
                _report_missed(event)
                yield event


def _report_missed(event: pb.WatchEventsResponse) -> None:
    if event.missed:
        count = "some" if event.missed < 0 else event.missed
        typer.echo(f"slotmesh: {count} events before this one are not kept any more", err=True)
