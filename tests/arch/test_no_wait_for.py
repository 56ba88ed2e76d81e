"""What has a deadline is in an `asyncio.timeout` block.

`asyncio.wait_for` of Python 3.11 swallows a cancellation that comes in the turn in which what it waits for is done, and
its task then never ends.
"""

from __future__ import annotations

import ast

from tests.arch.sources import shipped_modules


def test_nothing_is_waited_for_with_wait_for() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in shipped_modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "wait_for" and ast.unparse(node.value) == "asyncio"
    ]
    assert not found, "async with asyncio.timeout(...)"
