"""Writes the reasons into docs/errors.md, or checks that they are what they should be.

They follow from slotmesh/reasons.toml and the tables of statuses.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slotmesh.reason_pages import EXECUTED_WORDS, ReasonPage, metadata_keys, reason_pages

DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "errors.md"
_MARKED: Final = re.compile(r"(<!-- written: (\w+) -->\n).*?(<!-- end of what is written -->\n)", re.DOTALL)


def _table() -> Iterator[str]:
    yield "| reason | gRPC status | HTTP | executed | what happened |\n|---|---|---|---|---|\n"
    for page in reason_pages().values():
        executed = ", ".join(EXECUTED_WORDS[it] for it in page.conditions)
        name = page.reason.value
        yield f"| [{name}](#{name.lower()}) | {page.status} | {page.http} | {executed} | {page.summary} |\n"


def _pages() -> Iterator[str]:
    for page in reason_pages().values():
        yield f"### {page.reason.value}\n\n"
        yield from (f"- {line}\n" for line in _lines(page))
        yield "\n"


def _lines(page: ReasonPage) -> Iterator[str]:
    note = f". {page.status_note}" if page.status_note else ""
    yield f"{page.status}, HTTP {page.http}, `{page.error.partition(' ')[0]}`{note}"
    for executed, text in page.conditions.items():
        yield f"executed **{EXECUTED_WORDS[executed]}**: {text}"
    yield f"**sent by** {', '.join(page.sent_by)}" + (
        f", **metadata** {', '.join(f'`{key}`' for key in page.metadata)}" if page.metadata else ""
    )
    yield f"**retry**: {page.retry}"
    yield f"**see**: {page.see}"
    yield f"**mend**: {page.mend}"
    yield "**more**: " + ", ".join(f"[{it.partition('#')[0]}]({it})" for it in page.more)


def _metadata() -> Iterator[str]:
    yield "| key | meaning |\n|---|---|\n"
    yield from (f"| `{key}` | {meaning} |\n" for key, meaning in metadata_keys().items())


_PARTS: Final = {"table": _table, "pages": _pages, "metadata": _metadata}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something would change")
    is_check = parser.parse_args().check
    before = DOCUMENT.read_text("utf-8")
    after = _MARKED.sub(lambda found: f"{found[1]}{''.join(_PARTS[found[2]]())}{found[3]}", before)
    if is_check and before != after:
        sys.stderr.write(f"{DOCUMENT.name} is not what slotmesh/reasons.toml says: run `make format`\n")
        return 1
    if before != after:
        DOCUMENT.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
