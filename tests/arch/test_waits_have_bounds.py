"""A test that waits for an event, a process or a thread says for how long: the timeout of all tests is a backstop only.

Looked at are the bodies of tests: `await X.wait()` and `await X.communicate()` are in a block of `asyncio.timeout`, or
in `within` of `tests/support/wait.py`; `subprocess.run`, `process.wait` and `thread.join` have a `timeout`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.arch.sources import ROOT

_AWAITED: Final = ("wait", "communicate")
_BLOCKING: Final = ("subprocess.run", "process.wait", "thread.join", "child.communicate", "process.communicate")
_MAY_WAIT: Final = re.compile(rf"\.({'|'.join(_AWAITED)})\(\)|{'|'.join(map(re.escape, _BLOCKING))}")
"""Only what has one of these is parsed."""
_EXAMPLE: Final = """
async def test_it():
    await event.wait()
    async with asyncio.timeout(5.0):
        await event.wait()
        await asyncio.gather(event.wait())
    await within(event.wait(), "an event")
    await process.communicate()
    subprocess.run(["true"], check=True)
    subprocess.run(["true"], check=True, timeout=60)
    process.wait()
    process.wait(timeout=5)

async def helper():
    await event.wait()
"""


def unbounded(tree: ast.AST) -> list[int]:
    """Lines of tests at which something is awaited without a bound."""
    tests = (it for it in ast.walk(tree) if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef))
    return sorted(line for test in tests if test.name.startswith("test_") for line in _in(test, is_bounded=False))


def _in(node: ast.AST, *, is_bounded: bool) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue  # what it waits for is not the test's
        if not is_bounded:
            yield from _waits(child)
        is_timed = isinstance(child, ast.AsyncWith) and any(
            "timeout(" in ast.unparse(item.context_expr) for item in child.items
        )
        yield from _in(child, is_bounded=is_bounded or is_timed)


def _waits(node: ast.AST) -> Iterator[int]:
    match node:
        case ast.Await(value=ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[])) if name in _AWAITED:
            yield node.lineno
        case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
            if ast.unparse(call.func) in _BLOCKING and not any(it.arg == "timeout" for it in call.keywords):
                yield call.lineno
        case _:
            pass


def test_the_rule_finds_what_it_should() -> None:
    assert unbounded(ast.parse(_EXAMPLE)) == [3, 8, 9, 11]


def test_each_wait_of_a_test_has_a_bound() -> None:
    found: list[str] = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        if _MAY_WAIT.search(text):
            found += [f"{Path(path).relative_to(ROOT)}:{line}" for line in unbounded(ast.parse(text))]
    assert not found, 'await within(X, "what is waited for"), or async with asyncio.timeout(...), or timeout=...'
