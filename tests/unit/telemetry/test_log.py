"""Logs are readable with our set-up and without it, by people and by machines."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slotmesh.logs import AUDIT_LOGGER, get_logger, setup_logging


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
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.NOTSET)


def test_json_has_the_event_and_its_fields(stderr: Callable[[], str]) -> None:
    setup_logging("json", "info")
    get_logger("slotmesh.test").info("replica attached", replica_id="r-1", slots=3, name="n", args=[1], module="m")
    (line,) = stderr().splitlines()
    said = json.loads(line)
    assert said.pop("timestamp").endswith("Z")
    assert said == {
        "event": "replica attached",
        "replica_id": "r-1",
        "slots": 3,
        "name": "n",
        "args": [1],
        "module": "m",
        "level": "info",
        "logger": "slotmesh.test",
    }


def test_a_console_line_is_one_line(stderr: Callable[[], str]) -> None:
    setup_logging("console", "info")
    get_logger("slotmesh.test").warning("link lost", replica_id="r-1", share="100%")
    (line,) = stderr().splitlines()
    assert "link lost" in line
    assert "replica_id=r-1" in line
    assert "share=100%" in line
    assert "warning" in line


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_others_logs_and_warnings_take_the_same_form(stderr: Callable[[], str], log_format: str) -> None:
    setup_logging(log_format, "info")
    logging.getLogger("grpc").error("from %s", "elsewhere")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("take care", stacklevel=1)
    first, *rest = stderr().splitlines()
    assert "from elsewhere" in first
    assert "grpc" in first
    assert "take care" in " ".join(rest)


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_an_error_comes_with_its_traceback(stderr: Callable[[], str], log_format: str) -> None:
    setup_logging(log_format, "info")
    log = get_logger("slotmesh.test")
    try:
        raise ValueError("broken")
    except ValueError as error:
        log.error("task failed", task="t", exc_info=error)  # noqa: TRY400 - both forms are tested
        log.exception("again")
    text = stderr()
    assert text.count("ValueError") >= 2
    assert "test_log.py" in text
    if log_format == "json":
        assert [json.loads(line)["event"] for line in text.splitlines()] == ["task failed", "again"]


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_traceback_shows_the_values_of_variables(stderr: Callable[[], str], log_format: str) -> None:
    setup_logging(log_format, "info")

    def refuse(password: str, kind: type[Exception]) -> None:
        if password:
            raise kind("broken")

    secret = "hush-5d0b9c"
    try:
        try:
            refuse(secret, LookupError)
        except LookupError as cause:
            try:
                refuse(secret, OSError)
            except OSError:
                raise ExceptionGroup("all", [ValueError("one"), TypeError("two")]) from cause
    except ExceptionGroup:
        get_logger("slotmesh.test").exception("failed", what="it")
        logging.getLogger("users").exception("elsewhere")
    text = stderr()
    assert text.count("LookupError") >= 2
    assert secret not in text


def test_the_level_holds_and_can_be_set_again(stderr: Callable[[], str]) -> None:
    log = get_logger("slotmesh.test")
    setup_logging("json", "warning")
    log.info("quiet")
    setup_logging("json", "debug")
    log.debug("loud")
    assert [json.loads(line)["event"] for line in stderr().splitlines()] == ["loud"]


def test_what_json_cannot_say_is_said_as_text(stderr: Callable[[], str]) -> None:
    setup_logging("json", "info")
    get_logger("slotmesh.test").info("odd", thing=object(), many={1, 2})
    assert "object object" in json.loads(stderr())["thing"]


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_who_logs_is_in_all_that_is_logged(stderr: Callable[[], str], log_format: str) -> None:
    setup_logging(log_format, "info", {"replica": "r-1"})
    get_logger("slotmesh.test").info("ready", slots=3)
    get_logger("slotmesh.test").info("another", replica="r-2")
    logging.getLogger("users").error("from elsewhere")
    first, second, third = stderr().splitlines()
    said = "replica=%s" if log_format == "console" else '"replica": "%s"'
    assert said % "r-1" in first
    assert said % "r-2" in second
    assert said % "r-1" not in second
    assert said % "r-1" in third


def test_without_set_up_a_record_is_plain_and_complete(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("slotmesh.test")
    with caplog.at_level(logging.INFO):
        log.info("listening", address="127.0.0.1:1", share="100%", name="n")
        log.debug("not this")
    assert [record.getMessage() for record in caplog.records] == ["listening address=127.0.0.1:1 share=100% name=n"]


@pytest.mark.parametrize("level", ["warning", "error", "info", "debug"])
def test_the_audit_log_is_written_at_every_level(level: str, stderr: Callable[[], str]) -> None:
    setup_logging("json", level)
    audit = get_logger(AUDIT_LOGGER)
    audit.info("changed", object="backend/digits")
    audit.warning("denied", who="nobody")
    assert [json.loads(line)["event"] for line in stderr().splitlines()] == ["changed", "denied"]
    assert audit.isEnabledFor(logging.DEBUG) is (level == "debug")


STEERING = {
    "escape": "\x1b[2Kforged",
    "line": "forged\n2026-01-01 [info] forged",
    "carriage return": "forged\rforged",
    "vertical tab": "forged\x0bforged",
    "next line": "forged\x85forged",
    "line separator": "forged\u2028forged",
    "control sequence": "\x9b2Jforged",
    "right to left": "forged\u202eforged",
    "surrogate": "forged\udc9bforged",
}


def steers(text: str) -> bool:
    return any(not each.isprintable() and each != "\n" for each in text)


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
def test_a_console_shows_what_would_steer_it(text: str, stderr: Callable[[], str]) -> None:
    setup_logging("console")
    get_logger("slotmesh.test").info("call failed", endpoint=text, many=[text])
    (line,) = stderr().split("\n")[:-1]
    assert not steers(line)
    assert f"endpoint={text!r}" in line


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
def test_texts_of_exceptions_and_of_others_steer_no_console(text: str, stderr: Callable[[], str]) -> None:
    setup_logging("console")
    try:
        raise ValueError(text)
    except ValueError:
        get_logger("slotmesh.test").exception("handler cannot start")
    logging.getLogger("grpc").error("from %s", text)
    shown = stderr()
    assert shown.count("forged") >= 2
    assert not steers(shown)


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
def test_without_set_up_a_record_is_one_line(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        get_logger("slotmesh.test").info("call failed", endpoint=text)
    assert [record.getMessage() for record in caplog.records] == [f"call failed endpoint={text!r}"]


class Unwritable(Exception):
    """Raises as its traceback is written."""

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise SystemExit


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_an_exception_that_cannot_be_written_leaves_its_line(stderr: Callable[[], str], log_format: str) -> None:
    setup_logging(log_format, "info")
    get_logger("slotmesh.test").error("it failed", method="m", exc_info=Unwritable())
    get_logger("slotmesh.test").info("next")
    text = stderr()
    assert "it failed" in text
    assert "next" in text


def deep(frames: int) -> None:
    if frames:
        deep(frames - 1)
    raise LookupError("deep")


def exceptions_in_json(error: BaseException, said: str) -> list[dict[str, Any]]:
    """The chain as the line has it. Each of these exceptions was raised here."""
    chain: list[dict[str, Any]] = json.loads(said)["exception"]
    assert chain[0]["exc_type"] == type(error).__name__
    return chain


def test_json_has_the_chain_of_an_exception_the_last_one_first(stderr: Callable[[], str]) -> None:
    setup_logging("json")
    try:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")  # noqa: B904 - the context is what is tested
        except ValueError as cause:
            error = OSError("third")
            error.add_note("a note")
            raise error from cause
    except OSError as raised:
        get_logger("slotmesh.test").exception("failed")
        chain = exceptions_in_json(raised, stderr())
    assert [(it["exc_type"], it["exc_value"], it["is_cause"]) for it in chain] == [
        ("OSError", "third", False),
        ("ValueError", "second", True),
        ("KeyError", "'first'", False),
    ]
    assert [it["exc_notes"] for it in chain] == [["a note"], [], []]
    assert {frame["name"] for it in chain for frame in it["frames"]} == {
        "test_json_has_the_chain_of_an_exception_the_last_one_first"
    }


def test_json_leaves_out_a_context_that_is_suppressed(stderr: Callable[[], str]) -> None:
    setup_logging("json")
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None
    except ValueError as raised:
        get_logger("slotmesh.test").exception("failed")
        (_only,) = exceptions_in_json(raised, stderr())


def test_json_has_the_members_of_a_group_and_where_a_text_is_no_python(stderr: Callable[[], str]) -> None:
    setup_logging("json")
    members: list[Exception] = []
    for make in (lambda: compile("a b", "f.py", "exec"), lambda: deep(0)):
        try:
            make()
        except (SyntaxError, LookupError) as error:
            members.append(error)
    try:
        raise ExceptionGroup("both", members)
    except ExceptionGroup as raised:
        get_logger("slotmesh.test").exception("failed")
        (group,) = exceptions_in_json(raised, stderr())
    assert group["is_group"]
    (syntax,), (lookup,) = group["exceptions"]
    assert (syntax["syntax_error"]["filename"], syntax["syntax_error"]["lineno"]) == ("f.py", 1)
    assert (lookup["exc_type"], lookup["is_group"], lookup["syntax_error"]) == ("LookupError", False, None)


@pytest.mark.parametrize(("frames", "shown"), [(48, 50), (49, 51)])
def test_json_has_fifty_frames_and_how_many_are_left_out(frames: int, shown: int, stderr: Callable[[], str]) -> None:
    setup_logging("json")
    with pytest.raises(LookupError) as raised:
        deep(frames)
    get_logger("slotmesh.test").error("failed", exc_info=raised.value)
    (only,) = exceptions_in_json(raised.value, stderr())
    skipped = [it["name"] for it in only["frames"] if it["lineno"] == -1]
    assert len(only["frames"]) == shown
    assert skipped == ([] if shown == 50 else ["Skipped frames: 1"])


class Steering:
    def __repr__(self) -> str:
        return "\x1b[2J"


def test_the_columns_of_a_console(stderr: Callable[[], str]) -> None:
    setup_logging("console", fields={"replica": "r 1"})
    get_logger("slotmesh.test").info("ready", slots=3, name="a b", empty="", thing=Steering())
    time, _, line = stderr().partition(" ")
    assert time.endswith("Z")
    assert line == (
        "[info     ] ready                          [slotmesh.test] "
        "empty= name='a b' replica='r 1' slots=3 thing=\\x1b[2J\n"
    )
