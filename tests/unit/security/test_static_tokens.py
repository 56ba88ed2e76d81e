"""Static tokens: who holds one, what is refused, and how their file is kept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slotmesh.security.identity import Role
from slotmesh.security.secret_files import UnusableFile
from slotmesh.security.tokens import BadToken, TokenProblem, Tokens
from slotmesh.security.tokens.rules import REFUSAL
from slotmesh.security.tokens.static_tokens import StaticTokens, new_secret
from slotmesh.security.tokens.token_file import REMEMBERED_S, change_tokens, with_created, with_revoked
from slotmesh.security.tokens.verifier import read_static
from tests.support.token_files import accepts, created, revoked


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def problem_of(tokens: Tokens, token: str) -> TokenProblem:
    with pytest.raises(BadToken) as caught:
        tokens.identify(token)
    assert str(caught.value) == REFUSAL
    assert not token or token not in caught.value.reason
    return caught.value.problem


def test_tokens_are_recognised_by_scanners_and_never_the_same() -> None:
    made = {new_secret() for _ in range(100)}
    assert len({secret for secret, _ in made}) == len({token_id for _, token_id in made}) == 100
    assert all(re.fullmatch(rf"smt_{token_id}_[A-Za-z0-9]{{43}}", secret) for secret, token_id in made)


def test_the_holder_is_who_it_was_made_for(path: Path) -> None:
    alice, ops = created(path, endpoints={"digits"}), created(path, "operator/ops")
    tokens = Tokens(path)
    found = tokens.identify(alice)
    assert found.name == "client/alice"
    assert found.roles == {Role.INVOKER}
    assert found.endpoints == frozenset({"digits"})
    assert found.expires_at is not None
    assert tokens.identify(ops).roles == {Role.OPERATOR, Role.VIEWER, Role.INVOKER}
    assert accepts(tokens, alice)
    assert tokens.verify(alice).problem() is None


def test_what_is_wrong_with_a_token_is_for_the_log_and_not_for_its_holder(path: Path) -> None:
    alice, old, gone = created(path), created(path, for_s=-1), created(path)
    revoked(path, gone)
    tokens = Tokens(path)
    for token, problem in {
        new_secret()[0]: TokenProblem.UNKNOWN,
        alice[:-1] + ("a" if alice[-1] != "a" else "b"): TokenProblem.UNKNOWN,
        alice.replace("smt_", "smt_x"): TokenProblem.MALFORMED,
        "smt_": TokenProblem.MALFORMED,
        "": TokenProblem.MALFORMED,
        "smt_" + "a" * 9000: TokenProblem.MALFORMED,
        alice + "\n": TokenProblem.MALFORMED,
        "smt_" + "\N{SUPERSCRIPT TWO}" * 10: TokenProblem.MALFORMED,
        "\ud800": TokenProblem.MALFORMED,
        "a.b.c": TokenProblem.MALFORMED,
        old: TokenProblem.EXPIRED,
        gone: TokenProblem.REVOKED,
    }.items():
        assert problem_of(tokens, token) == problem
    assert tokens.refusals == {
        TokenProblem.UNKNOWN: 2,
        TokenProblem.MALFORMED: 8,
        TokenProblem.EXPIRED: 1,
        TokenProblem.REVOKED: 1,
    }


def test_a_token_ends_by_the_clock_and_by_the_file_that_servers_read_again(path: Path) -> None:
    token, clock, now = created(path), 0.0, time.time()
    tokens = Tokens(path, now=lambda: now, clock=lambda: clock)
    held = tokens.verify(token)
    now += 61
    assert problem_of(tokens, token) == TokenProblem.EXPIRED
    now -= 61
    revoked(path, token)
    assert held.problem() is None, "looked at a moment ago"
    clock += 5
    assert held.problem() == "the token of client/alice holds no longer"
    assert problem_of(tokens, token) == TokenProblem.REVOKED


def test_a_token_that_gives_less_than_before_holds_no_longer(path: Path) -> None:
    token, clock = created(path), 0.0
    tokens = Tokens(path, clock=lambda: clock)
    held = tokens.verify(token)
    document = json.loads(path.read_text())
    document["tokens"][0]["endpoints"] = ["digits"]
    path.write_text(json.dumps(document))
    clock += 5
    assert held.problem() is not None
    assert tokens.identify(token).endpoints == frozenset({"digits"})


def test_only_hashes_are_kept_in_a_file_of_its_owner(path: Path) -> None:
    token = created(path)
    assert token.split("_")[2] not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(UnusableFile, match=rf"can be read or written by others on this machine: `chmod 600 {path}`"):
        Tokens(path)
    with pytest.raises(UnusableFile, match="chmod 600"):
        created(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may hand a file to a group")
def test_a_group_may_read_a_file_of_root_and_nobody_else_may(path: Path) -> None:
    token = created(path)
    path.chmod(0o640)
    assert Tokens(path).identify(token).name == "client/alice"
    created(path, "client/bob")
    assert path.stat().st_mode & 0o777 == 0o640, "a change of the file leaves it as it was handed over"
    os.chown(path, 12_345, -1)
    with pytest.raises(UnusableFile, match=r"belongs to another user of this machine \(uid 12345\)"):
        Tokens(path)


def test_root_changes_the_file_of_a_service(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `slotmesh token revoke` does, which lets nobody in by it."""
    token, mine = created(path), os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: mine + 1)
    if mine != 0:
        with pytest.raises(UnusableFile, match=f"belongs to another user of this machine .uid {mine}."):
            Tokens(path)
    monkeypatch.setattr("os.fchown", lambda *_: None)
    revoked(path, token)
    monkeypatch.undo()
    assert problem_of(Tokens(path), token) == TokenProblem.REVOKED


def test_a_link_stays_one(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(path)
    token = created(link)
    assert link.is_symlink()
    assert accepts(Tokens(path), token)


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe", 0o600)
    with pytest.raises(UnusableFile, match="has to be a plain file"):
        Tokens(pipe)
    with pytest.raises(UnusableFile, match=r"`slotmesh token create NAME --file .*none.json` makes it"):
        Tokens(tmp_path / "none.json")
    (large := tmp_path / "large").touch(0o600)
    large.write_bytes(b" " * (1024 * 1024 + 1))
    with pytest.raises(UnusableFile, match="larger than 1024 KiB"):
        Tokens(large)


def test_commands_at_once_lose_nothing(path: Path) -> None:
    command = [sys.executable, "-m", "slotmesh.cli", "token", "create", "--file", str(path)]
    running = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for name in ("alice", "bob")
    ]
    printed = [process.communicate(timeout=60)[0] for process in running]
    assert all(text.count("\n") == 1 for text in printed), "the token and nothing else"
    tokens = Tokens(path)
    assert [tokens.identify(text.strip()).name for text in printed] == ["client/alice", "client/bob"]


def test_many_changes_at_once_lose_nothing(path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda index: created(path, f"client/n{index}"), range(24)))
    tokens = Tokens(path)
    assert [tokens.identify(token).name for token in made] == [f"client/n{index}" for index in range(24)]


def test_who_ended_long_ago_is_forgotten(path: Path) -> None:
    old, alice = created(path, for_s=-REMEMBERED_S - 5), created(path)
    assert [each.id for each in read_static(path).tokens] == [old.split("_")[1], alice.split("_")[1]][1:]


def test_who_is_revoked_again_was_revoked_before(path: Path) -> None:
    token_id = created(path).split("_")[1]
    once = with_revoked(read_static(path), [token_id], time.time())
    assert with_revoked(once, [token_id], time.time() + 60) == once


def test_a_change_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    created(path)
    before = path.read_bytes()

    def fail(_: StaticTokens) -> StaticTokens:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        change_tokens(path, fail)
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == [".tokens.json.lock", "tokens.json"]


ENTRY: dict[str, Any] = {
    "id": "abcdefghi0",
    "identity": "client/alice",
    "roles": ["invoker"],
    "created": "2026-01-01T00:00:00Z",
    "expires": None,
    "sha256": "0" * 64,
}


def document(*entries: object, **changes: object) -> str:
    return json.dumps({"version": 1, "tokens": list(entries), **changes})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not JSON (line 1"),
        ("[" * 100_000, "is not JSON"),
        ("\xff", "is not JSON"),
        ("[]", 'expected "version": 1 in an object'),
        (document(version=2), "another version of slotmesh may have made it"),
        (document(version=True), 'expected "version": 1 in an object'),
        (document(more=1), "'more': no such field"),
        ('{"version": 1, "version": 1, "tokens": []}', "'version': is there twice"),
        ('{"version": NaN}', "NaN is no value of JSON"),
        (document(tokens={}), "tokens: expected a list of at most 2,000 tokens"),
        (document(3), "tokens[0]: expected an object with id, identity"),
        (document(ENTRY, ENTRY), "tokens[1] (abcdefghi0): id: is that of an earlier token"),
        (document(ENTRY, {**ENTRY, "id": "abcdefghi1"}), "tokens[1] (abcdefghi1): sha256: is that of an earlier"),
        (document({**ENTRY, "role": []}), "tokens[0] (abcdefghi0): 'role': no such field; did you mean roles?"),
        (document({**ENTRY, "id": "../x"}), "tokens[0]: id: expected 10 of a-z and 0-9"),
        (document({**ENTRY, "identity": "router"}), "identity: expected client/NAME"),
        (document({**ENTRY, "identity": "client/a\n"}), "identity: expected client/NAME"),
        (document({**ENTRY, "roles": []}), "roles: expected a list of invoker, operator, viewer; members use cert"),
        (document({**ENTRY, "roles": ["router"]}), "members use certificates"),
        (document({**ENTRY, "roles": ["operator"]}), "roles: client/alice cannot be operator; a client is invoker"),
        (document({**ENTRY, "roles": [["invoker"]]}), "roles: expected a list"),
        (document({**ENTRY, "endpoints": []}), "endpoints: expected a list of 1 to 100 names; leave it out"),
        (document({**ENTRY, "endpoints": None}), "endpoints: expected"),
        (document({**ENTRY, "endpoints": "digits"}), "endpoints: expected"),
        (document({**ENTRY, "expires": "tomorrow"}), "expires: expected a time such as 2030-01-31T12:00:00Z"),
        (document({**ENTRY, "expires": "2026-13-01T00:00:00Z"}), "expires: there is no such time"),
        (document({**ENTRY, "revoked": None}), "revoked: expected a time"),
        (document({**ENTRY, "sha256": "F" * 64}), "sha256: expected 64 hexadecimal digits"),
        (document({key: value for key, value in ENTRY.items() if key != "expires"}), "expires: is missing"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_entry(path: Path, content: str, words: str) -> None:
    path.touch(0o600)
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UnusableFile) as caught:
        Tokens(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


def test_a_file_is_not_filled_over_its_bound(path: Path) -> None:
    entries = [{**ENTRY, "id": f"{index:010}", "sha256": f"{index:064x}"} for index in range(2000)]
    path.touch(0o600)
    path.write_text(document(*entries))
    tokens = read_static(path)
    secret, token_id = new_secret()
    with pytest.raises(ValueError, match="has 2,000 tokens already"):
        with_created(tokens, secret, token_id, tokens.tokens[0].identity, time.time())
