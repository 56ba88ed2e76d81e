"""The pages of reasons are complete and true: docs/errors.md has them, and failures in code are what they state."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache

import pytest
from typer.main import get_command

from slotmesh.cli.app import app
from slotmesh.errors import Executed, Reason
from slotmesh.reason_pages import ReasonPage, metadata_keys, reason_pages
from tests.arch.sources import ROOT, shipped_modules

SENDERS = {
    "router_service": "router",
    "replica_service": "replica",
    "controller_service": "controller",
    "ingress_service": "ingress",
    "slotmesh/client": "client",
}
"""The part of the mesh whose code stands in a folder."""
ANYWHERE = frozenset({"executed", "log_ref"})
"""Keys that any failure may have."""


def failures(tree: ast.AST) -> Iterator[tuple[int, str, ast.Call]]:
    """Each failure that code makes with a reason that it names: line, reason, expression."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Failure":
            name = getattr(argument(node, "reason"), "attr", "")
            if name in Reason.__members__:
                yield node.lineno, name, node


def argument(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


@cache
def made() -> tuple[tuple[str, int, str, ast.Call], ...]:
    """All of them, with their files. Not at import: each process that runs tests imports this."""
    return tuple((path, *failure) for path, tree in shipped_modules() for failure in failures(tree))


def executed_of(call: ast.Call) -> set[Executed]:
    """What the failure states of execution, where code states it outright."""
    value = argument(call, "executed")
    if value is None:
        return {Executed.NO}
    names = {each.attr for each in ast.walk(value) if isinstance(each, ast.Attribute)}
    return {Executed[name] for name in names & set(Executed.__members__)}


def keys_of(call: ast.Call) -> set[str]:
    """The keys of its metadata that code writes there."""
    value = argument(call, "metadata")
    pairs = [each for each in ast.walk(value) if isinstance(each, ast.Dict)] if value is not None else []
    return {str(key.value) for each in pairs for key in each.keys if isinstance(key, ast.Constant)}


def test_the_document_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/generate_errors_document.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_each_reason_has_a_page() -> None:
    assert set(reason_pages()) == set(Reason)


@pytest.mark.parametrize("page", reason_pages().values(), ids=lambda page: page.reason.value)
def test_a_page_is_complete(page: ReasonPage) -> None:
    may_be_empty = {"no", "unknown", "yes", "metadata", "status_note"}
    assert not [it.name for it in fields(page) if it.name not in may_be_empty and not getattr(page, it.name)]
    assert page.conditions
    assert set(page.sent_by) <= set(SENDERS.values())
    assert set(page.metadata) <= metadata_keys().keys()
    assert page.summary.endswith((".", ":")), "the first line of the exception's docstring is a sentence"


@pytest.mark.parametrize("page", reason_pages().values(), ids=lambda page: page.reason.value)
def test_links_of_a_page_lead_somewhere(page: ReasonPage) -> None:
    for link in page.more:
        file, _, anchor = link.partition("#")
        text = (ROOT / "docs" / file).read_text("utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        anchors.update(re.findall(r'<a id="(\w+)"></a>', text))
        assert not anchor or anchor in anchors, link


@pytest.mark.parametrize("page", reason_pages().values(), ids=lambda page: page.reason.value)
def test_commands_of_a_page_are_commands_with_flags_that_they_take(page: ReasonPage) -> None:
    for command in re.findall(r"`slotmesh ([^`]*)`", f"{page.retry} {page.see} {page.mend}"):
        words, group = command.split(), get_command(app)
        name = "slotmesh"
        while subcommands := getattr(group, "commands", {}):
            name, *words = words
            assert name in subcommands, command
            group = subcommands[name]
        try:
            group.make_context(name, words, resilient_parsing=True)  # without what a command requires
        except Exception as wrong:  # noqa: BLE001 - a usage error of click
            pytest.fail(f"{command}: {wrong}")


def test_failures_that_code_makes_are_what_their_pages_state() -> None:
    wrong: list[str] = []
    for path, line, name, call in made():
        page = reason_pages()[Reason[name]]
        where = f"{path}:{line}: {name}"
        wrong += [f"{where}: executed {it.name.lower()}" for it in executed_of(call) - page.conditions.keys()]
        wrong += [f"{where}: metadata {key}" for key in keys_of(call) - {*page.metadata, *ANYWHERE}]
        senders = (sender for folder, sender in SENDERS.items() if str(path).startswith(f"{folder}/"))
        wrong += [f"{where}: sent by the {sender}" for sender in senders if sender not in page.sent_by]
    assert not wrong, "slotmesh/reasons.toml states otherwise"


def test_failures_are_found() -> None:
    assert len(made()) > 150
    assert {name for _, _, name, _ in made()} > {"QUEUE_FULL", "REPLICA_LOST", "BAD_REQUEST", "STORE_UNAVAILABLE"}
