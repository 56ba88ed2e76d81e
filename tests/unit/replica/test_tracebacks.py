"""Users read about their own code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replica_service.shell.handler.handler_loop import HandlerLoop, OwnLoop, SharedLoop
from replica_service.shell.handler.loading import construct, load_handler, users_traceback

pytestmark = pytest.mark.asyncio

BOTH = pytest.mark.parametrize("kind", [SharedLoop, OwnLoop])


class Fails:
    def __init__(self) -> None:
        construct(Inner, {})


class Inner:
    def __init__(self) -> None:
        raise ValueError("no")


class Group:
    def __init__(self) -> None:
        try:
            raise ValueError("first")
        except ValueError as first:
            raise ExceptionGroup("both", [first, KeyError("never raised")]) from first


class Quits:
    def __init__(self) -> None:
        raise SystemExit(3)


class Needs:
    def __init__(self, model: str) -> None: ...


async def told(kind: Callable[[], HandlerLoop], function: Callable[[], Any]) -> str:
    """The traceback of what it raises where handlers are constructed."""
    loop = kind()
    try:
        task = asyncio.ensure_future(loop.construct(function))
        await asyncio.wait((task,))
        error = task.exception()
        assert error is not None
        return users_traceback(error)
    finally:
        await loop.close()


def files(text: str) -> list[str]:
    return [line.split('"')[1].rpartition("/")[2] for line in text.splitlines() if 'File "' in line]


@BOTH
async def test_what_is_above_the_users_code_is_left_out_and_what_is_between_stays(
    kind: Callable[[], HandlerLoop],
) -> None:
    text = await told(kind, partial(construct, Fails, {}))
    assert files(text) == ["test_tracebacks.py", "loading.py", "test_tracebacks.py"]
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ValueError: no\n")


@BOTH
async def test_causes_and_groups_are_told_likewise(kind: Callable[[], HandlerLoop]) -> None:
    quits = await told(kind, partial(construct, Quits, {}))
    assert files(quits) == ["test_tracebacks.py"]
    assert quits.endswith("RuntimeError: the handler tried to end the process: SystemExit(3)\n")
    assert set(files(await told(kind, partial(construct, Group, {})))) == {"test_tracebacks.py"}


async def test_where_users_code_has_no_part_there_is_a_line() -> None:
    (line,) = (await told(SharedLoop, partial(construct, Needs, {}))).splitlines()
    assert line.startswith("TypeError: Needs.__init__() missing 1 required positional argument: 'model'")


async def test_an_import_is_told_from_the_users_module_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_outer.py").write_text("import users_inner\n")
    (tmp_path / "users_inner.py").write_text("raise ValueError('no')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    text = await told(SharedLoop, partial(load_handler, "users_outer:Any"))
    assert files(text)[0] == "users_outer.py"
    assert files(text)[-1] == "users_inner.py"
