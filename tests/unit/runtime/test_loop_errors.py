"""Errors that no code awaits are logged: by name and traceback, without the values that were held."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from slotmesh.logs import setup_logging
from slotmesh.runtime.main import log_loop_errors

SECRET = "hush-5d0b9c"


@pytest.fixture
def logged(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Gives what was logged; the logs of the test process are put back in the end."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield lambda: capsys.readouterr().err
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def fail(_held: str) -> None:
    raise ValueError("planned")


async def fail_later(held: str) -> None:
    fail(held)


async def wait(held: str) -> None:
    await asyncio.get_running_loop().create_future()
    del held


def run(leave_behind: Callable[[asyncio.AbstractEventLoop], object], *, texts: bool = True) -> None:
    """On a loop of asyncio's own, whose report shows the most."""
    setup_logging("json", "info")
    loop = asyncio.new_event_loop()
    log_loop_errors(loop, texts=texts)

    async def main() -> None:
        leave_behind(loop)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    gc.collect()
    loop.close()


@pytest.mark.parametrize(
    ("leave_behind", "name"),
    [
        (lambda loop: loop.call_soon(fail, SECRET), "fail"),
        (lambda loop: loop.call_soon(partial(fail, SECRET)), "fail"),
        (lambda loop: bool(loop.create_task(fail_later(SECRET))), "fail_later"),
    ],
    ids=["callback", "partial", "task"],
)
def test_what_fails_is_named_without_its_arguments(
    leave_behind: Callable[[asyncio.AbstractEventLoop], object], name: str, logged: Callable[[], str]
) -> None:
    run(leave_behind)
    text = logged()
    (line,) = text.splitlines()
    said = json.loads(line)
    assert name in {said.get("callback"), said.get("of")}
    assert said["exception"][0]["exc_value"] == "planned"
    assert SECRET not in text


def test_a_future_that_failed_unseen_is_told(logged: Callable[[], str]) -> None:
    run(lambda loop: loop.create_future().set_exception(ValueError("planned")))
    assert json.loads(logged())["exception"][0]["exc_type"] == "ValueError"


def test_a_task_that_was_dropped_is_told(logged: Callable[[], str]) -> None:
    run(lambda loop: bool(loop.create_task(wait(SECRET))))
    text = logged()
    assert json.loads(text)["of"] == "wait"
    assert SECRET not in text


@pytest.mark.parametrize("held", ["callback", "task"])
def test_where_users_code_runs_no_text_is_logged(held: str, logged: Callable[[], str]) -> None:
    def leave_behind(loop: asyncio.AbstractEventLoop) -> object:
        return loop.call_soon(fail, SECRET) if held == "callback" else loop.create_task(fail_later(SECRET))

    run(leave_behind, texts=False)
    (line,) = logged().splitlines()
    assert json.loads(line)["exception"][0]["exc_type"] == "ValueError"
    assert "planned" not in line
