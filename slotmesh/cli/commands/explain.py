"""`slotmesh explain`: what a reason of failures means, and what to do. Needs no mesh and no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, TextIO

import typer
from rich.table import Table

from slotmesh.cli.console import Output, OutputForm, Printable, TableColumns, console_of, table_of
from slotmesh.errors import ERROR_OF, Reason
from slotmesh.names import did_you_mean
from slotmesh.reason_pages import EXECUTED_WORDS, ReasonPage, find_reasons, metadata_keys, reason_pages

_COLUMNS: TableColumns[ReasonPage] = {
    "reason": lambda it: it.reason.value,
    "status": lambda it: it.status,
    "executed": lambda it: ", ".join(EXECUTED_WORDS[each] for each in it.conditions),
    "what happened": lambda it: it.summary,
}


def _rows(page: ReasonPage) -> Iterable[tuple[str, str]]:
    yield "status", f"{page.status}, by HTTP {page.http}"
    if page.status_note:
        yield "", page.status_note
    yield "in Python", page.error
    for executed, text in page.conditions.items():
        yield f"executed: {EXECUTED_WORDS[executed]}", text
    yield "sent by", ", ".join(page.sent_by)
    yield "retry", page.retry
    yield "see", page.see
    yield "mend", page.mend
    for key in page.metadata:
        yield f"metadata {key}", metadata_keys()[key]
    yield "more", ", ".join(f"docs/{it}" for it in page.more)


def _print_pages(pages: Sequence[ReasonPage], out: TextIO) -> None:
    console = console_of(out)
    for number, page in enumerate(pages):
        console.print(f"{'' if number == 0 else chr(10)}{page.reason.value}: {page.summary}")
        grid = Table.grid(padding=(0, 2))
        for label, text in _rows(page):
            grid.add_row(label, text.replace("`", ""))
        console.print(grid)


def _document(page: ReasonPage) -> dict[str, Any]:
    return {
        "reason": page.reason.value,
        "status": page.status,
        "httpStatus": page.http,
        "error": page.error,
        "conditions": {EXECUTED_WORDS[executed]: text for executed, text in page.conditions.items()},
        **({"statusNote": page.status_note} if page.status_note else {}),
        "sentBy": [*page.sent_by],
        "retry": page.retry,
        "see": page.see,
        "mend": page.mend,
        "metadata": {key: metadata_keys()[key] for key in page.metadata},
        "more": [f"docs/{it}" for it in page.more],
    }


def explain(
    reason: Annotated[
        str,
        typer.Argument(
            metavar="[REASON]",
            help="As QUEUE_FULL, the class QueueFull, or the begin of an error. A gRPC status: all its reasons."
            " None: the list of all.",
        ),
    ] = "",
    output: Output = OutputForm.TABLE,
) -> None:
    """Explain a failure: what happened, whether the call was executed, if a retry helps, and how to mend it.

    Needs no mesh. The same as docs/errors.md.

    Like this:

        slotmesh explain QUEUE_FULL
        slotmesh explain "UNAVAILABLE/REPLICA_LOST: the connection to replica digits-1 broke"
    """
    pages = reason_pages()
    found = find_reasons(reason) if reason else [*pages]
    if not found:
        names = [*Reason, *(error.__name__ for error in ERROR_OF.values())]
        meant = did_you_mean(reason.upper(), names) or did_you_mean(reason, names)
        raise typer.BadParameter(f"there is no reason {reason!r}{meant or '; `slotmesh explain` lists all'}")
    shown = [pages[it] for it in found]
    Printable(
        table=partial(_print_pages, shown)
        if reason
        else lambda out: console_of(out).print(table_of("Reasons", _COLUMNS, shown)),
        document=lambda: {"reasons": [_document(it) for it in shown]},
        names=lambda: (it.reason.value for it in shown),
    ).write(output)
