"""A stand-in of an exception shows where and of which types, in every format, and no text."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator

import pytest

from slotmesh.logs import MAX_EXCEPTIONS, get_logger, setup_logging, without_text

SECRET = "hush-5d0b9c"
NOTHING: dict[str, object] = {}


class Refused(LookupError):
    """One of users' own."""


def raised(fail: Callable[[], object]) -> BaseException:
    try:
        fail()
    except BaseException as error:  # noqa: BLE001 - any kind
        return error
    raise AssertionError("it does not fail")


def with_a_cause() -> None:
    try:
        int(SECRET)
    except ValueError as error:
        refused = Refused(SECRET)
        refused.add_note(SECRET)
        raise refused from error


def with_a_context() -> None:
    try:
        NOTHING[SECRET]
    except KeyError:
        raise Refused(SECRET)  # noqa: B904 - that is what is tested


def from_none() -> None:
    try:
        NOTHING[SECRET]
    except KeyError:
        raise Refused(SECRET) from None


def in_a_group() -> None:
    raise BaseExceptionGroup(SECRET, [raised(with_a_cause), ExceptionGroup(SECRET, [OSError(2, SECRET, SECRET)])])


def in_syntax() -> None:
    compile(f"{SECRET} = '", SECRET, "exec")


def misnamed() -> None:
    getattr(object(), SECRET)


KINDS: dict[Callable[[], object], list[str]] = {
    with_a_cause: ["ValueError", "direct cause", "test_textless.Refused"],
    with_a_context: ["KeyError", "another exception", "test_textless.Refused"],
    from_none: ["test_textless.Refused"],
    in_a_group: ["BaseExceptionGroup", "ValueError", "direct cause", "Refused", "ExceptionGroup", "FileNotFoundError"],
    in_syntax: ["SyntaxError"],
    misnamed: ["AttributeError"],
}


@pytest.mark.parametrize("fail", KINDS, ids=lambda it: it.__name__)
def test_types_and_places_are_shown_and_no_text(fail: Callable[[], object]) -> None:
    error = raised(fail)
    shown = "".join(traceback.format_exception(without_text(error)))
    assert SECRET not in shown
    at = 0
    for kind in KINDS[fail]:
        at = shown.index(kind, at)
    assert f"in {fail.__name__}" in shown
    assert ("KeyError" in shown) is (fail is with_a_context)
    assert SECRET in "".join(traceback.format_exception(error)), "the exception itself stays as it is"


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Gives what was written to stderr; the logs of the test process are put back in the end."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield lambda: capsys.readouterr().err
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.parametrize("fail", KINDS, ids=lambda it: it.__name__)
def test_logs_show_it_as_an_exception(fail: Callable[[], object], log_format: str, stderr: Callable[[], str]) -> None:
    setup_logging(log_format)
    get_logger("slotmesh.test").error("handler raised", exc_info=without_text(raised(fail)))
    text = stderr()
    assert SECRET not in text
    assert fail.__name__ in text
    if log_format == "json":
        assert json.loads(text)["exception"][0]["exc_type"] == type(raised(fail)).__name__


def test_circles_and_long_chains_end() -> None:
    first, second = ValueError(SECRET), KeyError(SECRET)
    first.__cause__, second.__context__ = second, first
    shown = "".join(traceback.format_exception(without_text(first)))
    assert (shown.count("ValueError"), shown.count("KeyError"), SECRET in shown) == (1, 1, False)
    error: BaseException = ValueError(SECRET)
    for _ in range(5_000):
        later = ValueError(SECRET)
        later.__context__ = error
        error = later
    assert "".join(traceback.format_exception(without_text(error))).count("ValueError") == MAX_EXCEPTIONS
    nested: Exception = ValueError(SECRET)
    for _ in range(5_000):
        nested = ExceptionGroup(SECRET, [nested])
    without_text(nested)
