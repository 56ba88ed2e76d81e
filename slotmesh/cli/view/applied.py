"""What a change comes to, a line each; and what a file would change, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TextIO

from slotmesh.cli.applied import Applied
from slotmesh.cli.output import Printable

_VERBS: Final = ("created", "updated", "unchanged", "deleted")


def printable_change(applied: Applied) -> Printable:
    """`created   backend/v1` and so on, then the revision."""

    def table(out: TextIO) -> None:
        for verb in _VERBS:
            out.writelines(f"{verb:<9} {name}\n" for name in getattr(applied, verb))
        out.write(f"revision  {applied.revision}\n")

    return Printable(
        table=table,
        document=lambda: {"revision": applied.revision, **{verb: list(getattr(applied, verb)) for verb in _VERBS}},
        names=lambda: (name for verb in _VERBS for name in getattr(applied, verb)),
    )


def difference(planned: Applied) -> Iterator[str]:
    """The lines of a diff: what is created, updated and deleted, with the fields that differ."""
    for sign, names in (("+", planned.created), ("~", planned.updated), ("-", planned.deleted)):
        for name in names:
            yield f"{sign} {name}"
            for it in planned.fields:
                if it.subject == name and sign == "~":
                    yield f"    {it.field}: {it.before} -> {it.after}"
                elif it.subject == name and sign == "+":
                    yield f"    {it.field}: {it.after}"


def consequences(applied: Applied, *, is_planned: bool = False) -> Iterator[str]:
    """What goes on after a change: which replicas are replaced, which traffic waits for that; and warnings."""
    if applied.rolling:
        are = "would be" if is_planned else "are"
        yield f"replicas of {', '.join(applied.rolling)} {are} started or replaced"
    for it in applied.waits:
        line = f"traffic of {it.endpoint} stays as it is until the rollout of {', '.join(it.backends)} is complete"
        if it.deleted_afterwards:
            line += f"; {', '.join(it.deleted_afterwards)} is deleted after that"
        yield line
    for warning in applied.warnings:
        yield f"warning: {warning}"


def conflicts(planned: Applied) -> Iterator[str]:
    """The lines that say what the file and somebody else have changed."""
    for it in planned.conflicts:
        yield f"! {it.subject}"
        yield f"    {it.field}: {it.live} is there, since somebody changed it"
        yield f"    {' ' * len(it.field)}  {it.wanted} is in the file, which said {it.applied} when it was applied last"
