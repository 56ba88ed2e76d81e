"""How commands end and print: exit status, errors, the forms of `--output`, and texts that cannot steer the terminal.

Invariants: failures go to stderr, as words and never as a traceback; results go to stdout. Errors, events and names are
escaped here before people see them; only lines of handlers (`slotmesh logs`) and results of calls are written
unchanged. A command defines its output once, as a `Printable` with all forms; JSON and YAML are the same document. The
form `name` prints one name a line, each accepted by other commands.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Annotated, Any, Final, TextIO, TypeAlias, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from slotmesh.errors import SlotmeshError
from slotmesh.names import LINES, printable_text


def say(text: object, *, err: bool = False) -> None:
    """Writes a line, or several, to stdout or stderr."""
    typer.echo(printable_text(str(text), LINES), err=err)


def some_of(names: Collection[str], most: int) -> str:
    """The first of these names, and a mark if there are more."""
    return ", ".join([*names][:most]) + (", …" if len(names) > most else "")


class PrintableConsole(Console):
    """A console that takes texts as they are: no markup in them, and nothing that steers the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        # Before tables measure it: an escape is wider than what it stands for.
        return super().render_str(printable_text(text, LINES), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_text(segment.text, LINES), segment.style)


class OutputForm(StrEnum):
    """How something is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Output = Annotated[
    OutputForm,
    typer.Option(
        "--output",
        "-o",
        help="For people; for programs, with the fields of the messages in protos/slotmesh/v1; or only the names that"
        " other commands take.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as `--output json`.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Printable:
    """What a command shows. Only the form that is asked for is made."""

    table: Callable[[TextIO], None]
    document: Callable[[], Mapping[str, Any]]
    """Plain values, with times in ISO 8601."""
    names: Callable[[], Iterable[str]]
    """As `backend/NAME`."""

    def write(self, form: OutputForm, out: TextIO | None = None) -> None:
        """Writes it, to stdout unless given."""
        out = out or sys.stdout
        match form:
            case OutputForm.TABLE:
                self.table(out)
            case OutputForm.JSON:
                out.write(json.dumps(self.document(), indent=2) + "\n")
            case OutputForm.YAML:
                out.write(as_yaml(self.document()))
            case OutputForm.NAME:
                out.writelines(f"{printable_text(name)}\n" for name in self.names())


def as_yaml(document: Mapping[str, Any], *, explicit_start: bool = False) -> str:
    """The document as YAML; with `explicit_start` it may follow another one."""
    import yaml  # noqa: PLC0415 - imported only for YAML output

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, explicit_start=explicit_start)
    return text


def form_of(output: OutputForm, as_json: bool) -> OutputForm:
    """What was asked for with `--output` and `--json`."""
    if not as_json or output is OutputForm.JSON:
        return OutputForm.JSON if as_json else output
    if output is not OutputForm.TABLE:
        raise typer.BadParameter(f"contradicts --output {output}: give one of them", param_hint="--json")
    return OutputForm.JSON


FAILED: Final = 1
"""Exit status: it was tried and did not work."""
WRONG_INPUT: Final = 2
"""Exit status: what was typed, or a file that it named, is wrong. Nothing was sent."""

NOT_IN_TIME: Final = 3
"""Exit status: it was done, and what should follow from it did not come in time, failed or was rolled back."""

UNWELL: Final = 4
"""Exit status: it was looked at, and something is wrong with it."""

INTERRUPTED: Final = 130
"""Exit status: Ctrl-C ended it before it had done what it had to."""

ResultT = TypeVar("ResultT")
RowT = TypeVar("RowT")


class CommandFailed(Exception):
    """The command has failed; the message has the reason, and the way out."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    async def explained(self) -> str:
        """The message; of some failures with what a server is asked for it."""
        return str(self)


@asynccontextmanager
async def ended_by_sigterm() -> AsyncIterator[None]:
    """SIGTERM cancels the block, so that it prints its summary; then the command ends as if killed by SIGTERM."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    received = False

    def end() -> None:
        nonlocal received
        received = True
        if task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if received and task is not None and not task.uncancel():
            raise typer.Exit(128 + signal.SIGTERM) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _woken_by_signals(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Does the work on a loop that each signal wakes, Ctrl-C above all.

    Python runs a handler when its main thread runs. Where the signal has interrupted another thread, or the main thread
    just before it began to wait, that would be at the next event, which may never come. With any handler of its own the
    loop has a wake-up descriptor; this signal is ignored otherwise, too.
    """
    with suppress(NotImplementedError, RuntimeError):  # on Windows; and outside of the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGURG, bool)
    return await work


def complete(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Runs a command's work on a fresh event loop. Its failure becomes words on stderr and an exit status."""
    try:
        return asyncio.run(_woken_by_signals(work))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except CommandFailed as failure:
        say(asyncio.run(failure.explained()), err=True)
        raise typer.Exit(failure.exit_code) from failure
    except SlotmeshError as failure:
        say(failure, err=True)
        raise typer.Exit(FAILED) from failure


async def looks(every_s: float, within_s: float | None) -> AsyncIterator[bool]:
    """Looks that a command takes at the mesh, one after another: each is whether the time for them is over.

    `within_s` None: without a limit.
    """
    loop = asyncio.get_running_loop()
    deadline = inf if within_s is None else loop.time() + within_s
    while True:
        yield loop.time() >= deadline
        await asyncio.sleep(every_s)


def is_interactive() -> bool:
    """Whether a person can be asked, and waits for what follows."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Asks before a change, on a terminal. The command ends unless the answer is yes, or `yes` was given."""
    if is_interactive() and not yes:
        typer.confirm(question, abort=True, err=True)


_PIPED_WIDTH: Final = 200
"""TableColumns where the output is no terminal."""


def console_of(out: TextIO) -> Console:
    """Where tables go. What is printed is taken as it is."""
    width = None if out.isatty() else _PIPED_WIDTH
    return PrintableConsole(file=out, width=width)


TableColumns: TypeAlias = Mapping[str, Callable[[RowT], Text | str | int]]
"""The columns of a table by title: the cell of a row. A cell of 0 or "" is empty."""


def table_of(title: str, columns: TableColumns[RowT], rows: Iterable[RowT]) -> Table:
    """A table for people: a row for each of the rows."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = [cell(row) for cell in columns.values()]
        table.add_row(*(cell if isinstance(cell, Text) else str(cell or "") for cell in cells))
    return table


def listing(title: str, rows: Sequence[Mapping[str, Any]], columns: TableColumns[Any], name: str) -> Printable:
    """Rows that are documents, as one table, or as a list under the title. `name`: the field with their names."""
    return Printable(
        table=lambda out: console_of(out).print(table_of(title, columns, rows)),
        document=lambda: {title.lower(): [*rows]},
        names=lambda: [row[name] for row in rows],
    )


def write_subjects(form: OutputForm, verb: str, subjects: Sequence[str]) -> None:
    """Prints what was done with these subjects, a line each, as `forgotten replica/a`."""
    Printable(
        table=lambda out: out.writelines(f"{verb:<9} {subject}\n" for subject in subjects),
        document=lambda: {verb: [*subjects]},
        names=lambda: subjects,
    ).write(form)


class ProgressBar:
    """A bar that fills step by step, on a terminal; nothing elsewhere."""

    def __init__(self, out: TextIO) -> None:
        texts = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[left]"))
        title, left = texts
        columns = (title, BarColumn(), MofNCompleteColumn(), left, TimeElapsedColumn())
        console = PrintableConsole(file=out)
        self._bar = Progress(*columns, console=console, disable=not out.isatty(), transient=True)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, title: str, completed: int, total: int, left: str) -> None:
        """Moves the bar. `left`: what is missing."""
        task = self._bar.task_ids[0] if self._bar.task_ids else self._bar.add_task(title, left="")
        self._bar.update(task, completed=completed, total=total, left=left)
