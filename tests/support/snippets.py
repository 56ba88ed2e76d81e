"""Fenced code of a document, and running it as what it says: Python with `await` at the top level, and tests.

Invariants: the snippets of a section (from one `##` heading to the next) are one module, run in the order in which they
stand, after the preamble; a mistake is reported at its line of the document.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

_FENCE: Final = re.compile(r"^```(\w*)$")
_HEADING: Final = re.compile(r"^#+ (.*)$")


@dataclass(frozen=True, slots=True)
class Snippet:
    """One fenced block."""

    path: Path
    line: int
    """Of the document, of the block's first line."""
    section: str
    """The nearest heading of the second level before it; empty before the first."""
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


def snippets_of(path: Path) -> list[Snippet]:
    """All fenced blocks of a document, in order."""
    return list(_read(path))


async def run_python(name: str, preamble: Sequence[Snippet], snippets: Sequence[Snippet]) -> ModuleType:
    """Runs them as one module, which is importable by `name` meanwhile, and then its functions named `test_…`."""
    module = sys.modules[name] = ModuleType(name)
    try:
        for snippet in (*preamble, *snippets):
            outcome = eval(_compile(snippet), module.__dict__)  # noqa: S307 - our own documentation
            if inspect.isawaitable(outcome):
                await outcome
        for test in [value for key, value in vars(module).items() if key.startswith("test_")]:
            if inspect.iscoroutinefunction(test):
                await test()
            else:
                await asyncio.to_thread(test)
    finally:
        del sys.modules[name]
    return module


def _compile(snippet: Snippet) -> CodeType:
    tree = ast.parse(snippet.text, str(snippet.path))
    ast.increment_lineno(tree, snippet.line - 1)
    code: Any = compile(tree, str(snippet.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    assert isinstance(code, CodeType)
    return code


def _read(path: Path) -> Iterator[Snippet]:
    section = ""
    lines = iter(enumerate(path.read_text("utf-8").splitlines(), 1))
    for number, line in lines:
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if (fence := _FENCE.match(line)) is None:
            continue
        text = []
        for _, inner in lines:
            if inner == "```":
                break
            text.append(inner)
        else:
            raise AssertionError(f"{path.name}:{number}: the fence is never closed")
        yield Snippet(path, number + 1, section, fence[1], "\n".join(text) + "\n")
