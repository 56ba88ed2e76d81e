"""`slotmesh explain`: each reason has its page, found by all names that users see, without a mesh."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import slotmesh
from slotmesh.cli.app import app
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.reason_pages import find_reasons, reason_pages
from slotmesh.status import STATUS_OF, to_exception

ROOT = Path(slotmesh.__file__).parent


def explained(*words: str) -> Result:
    """What the command prints and its exit status."""
    return CliRunner().invoke(app, ["explain", *words], env={"COLUMNS": "200"})


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value)
def test_a_reason_is_found_by_each_name_that_a_user_sees(reason: Reason) -> None:
    error = to_exception(Failure(reason=reason, message="a: b/c", executed=Executed.NO))
    names = (
        reason.value,
        reason.value.lower().replace("_", "-"),
        type(error).__name__,
        f"slotmesh.{type(error).__name__}",
    )
    for name in (*names, str(error)):
        assert find_reasons(name) == [reason], name


def test_a_status_stands_for_all_its_reasons() -> None:
    found = find_reasons("resource_exhausted")
    assert found == [it for it in reason_pages() if STATUS_OF[it].name == "RESOURCE_EXHAUSTED"]
    assert Reason.QUEUE_FULL in found
    assert find_reasons("CANCELLED") == [Reason.CANCELLED], "a reason goes before a status"


def test_a_page_answers_all_questions() -> None:
    page = explained("QUEUE_FULL").stdout
    assert page.startswith("QUEUE_FULL: The backend's queue is full.\n")
    for words in (
        "RESOURCE_EXHAUSTED, by HTTP 503",
        "slotmesh.QueueFull",
        "executed: no",
        "router",
        "max_queued_calls",
    ):
        assert words in page
    for label in ("sent by", "retry", "see", "mend", "metadata backend", "more"):
        assert f"\n{label} " in page
    assert "413; 500 if executed" in explained("PAYLOAD_TOO_LARGE").stdout


def test_without_a_name_all_are_listed() -> None:
    assert explained("-o", "name").stdout.split() == [it.value for it in reason_pages()]
    listed = explained().stdout
    assert all(it.value in listed for it in Reason)


def test_programs_get_a_document() -> None:
    (page,) = json.loads(explained("deadline_running", "-o", "json").stdout)["reasons"]
    assert (page["reason"], page["status"], page["error"].partition(" ")[0]) == (
        "DEADLINE_RUNNING",
        "DEADLINE_EXCEEDED",
        "slotmesh.DeadlineRunning",
    )
    assert page["conditions"].keys() == {"unknown", "yes"}
    assert page["metadata"].keys() == {"backend", "replica_id"}


def test_no_page_has_a_sentence_twice() -> None:
    for page in reason_pages().values():
        for text in (*page.conditions.values(), page.retry, page.see, page.mend):
            sentences = [it.rstrip(".") for it in text.split(". ")]
            assert len({*sentences}) == len(sentences), (page.reason, text)


@pytest.mark.parametrize(
    ("word", "words"), [("QEUE_FUL", "did you mean QUEUE_FULL?"), ("QueuFull", "QUEUE_FULL"), ("zzz", "lists all")]
)
def test_an_unknown_name_gets_the_nearest(word: str, words: str) -> None:
    done = explained(word)
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_it_works_from_an_installed_package_without_a_checkout(tmp_path: Path) -> None:
    shutil.copytree(ROOT, tmp_path / ROOT.name, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "slotmesh.cli", "explain", "NO_SLOT"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=60,
    )
    assert done.stdout.startswith("NO_SLOT: No slot was free in time."), done.stderr
