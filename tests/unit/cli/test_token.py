"""`slotmesh token`: what is printed where, and the words of what does not work."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from slotmesh.cli.app import app
from slotmesh.security.identity import Role
from slotmesh.security.tokens import Tokens
from tests.support.token_files import accepts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["token", *arguments], env={"SLOTMESH_TOKENS": str(path)})


def words(said: Result) -> str:
    """Without the frame that errors of usage are drawn in."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", said.stderr).split())


def test_the_token_alone_is_on_stdout(path: Path) -> None:
    said = run(path, "create", "alice", "--endpoint", "digits", "--endpoint", "words", "--expires", "90d")
    assert said.exit_code == 0
    assert re.fullmatch(r"smt_[a-z0-9]{10}_[A-Za-z0-9]{43}\n", said.stdout)
    token = said.stdout.strip()
    assert token.split("_")[2] not in said.stderr
    assert "client/alice, valid until" in said.stderr
    assert "(90 days)" in said.stderr
    assert f"`slotmesh token revoke {token.split('_')[1]} --file {path}`" in said.stderr
    found = Tokens(path).identify(token)
    assert (found.name, found.endpoints) == ("client/alice", frozenset({"digits", "words"}))
    assert found.expires_at == pytest.approx(time.time() + 90 * 86_400, abs=30)


def test_roles_and_ends(path: Path) -> None:
    ops = run(path, "create", "ops", "--role", "operator", "--expires", "never")
    assert "operator/ops, which does not expire" in ops.stderr
    found = Tokens(path).identify(ops.stdout.strip())
    assert (found.roles, found.expires_at) == (frozenset({Role.OPERATOR, Role.VIEWER, Role.INVOKER}), None)
    wall = run(path, "create", "wall", "--role", "viewer").stdout.strip()
    viewer = Tokens(path).identify(wall)
    assert (viewer.name, viewer.roles) == ("viewer/wall", frozenset({Role.VIEWER}))
    assert viewer.expires_at == pytest.approx(time.time() + 30 * 86_400, abs=30)


def test_the_list_has_no_secrets_and_ids_that_revoke_takes(path: Path) -> None:
    tokens = [run(path, "create", name).stdout.strip() for name in ("alice", "bob", "carol")]
    first, second, third = run(path, "list", "-o", "name").stdout.split()
    assert [first, second, third] == [token.split("_")[1] for token in tokens]
    said = run(path, "revoke", first, tokens[2])
    assert said.stderr == f"{first} of client/alice is revoked\n{third} of client/carol is revoked\n"
    assert run(path, "revoke", first).stderr == f"{first} of client/alice was revoked before\n"
    listed = json.loads(run(path, "list", "--output", "json").stdout)["tokens"]
    assert [each["state"] for each in listed] == ["revoked", "valid", "revoked"]
    assert listed[1].keys() == {"id", "identity", "roles", "created", "expires", "state"}
    table = run(path, "list").stdout
    assert "client/bob" in table
    assert "revoked" in table
    digests = [each["sha256"] for each in json.loads(path.read_text())["tokens"]]
    for text in (table, json.dumps(listed)):
        assert not any(secret in text for secret in (*digests, *(token.split("_")[2] for token in tokens)))
    verifier = Tokens(path)
    assert [accepts(verifier, token) for token in tokens] == [False, True, False]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["create", "a/b"], "Invalid value for NAME: 1 to 63 of"),
        (["create", "a", "--expires", "30"], "expected a duration such as 250ms, 30s or 2m, got '30', or `never`"),
        (["create", "a", "--expires", "0s"], "expected 1s to 3650d, or `never`, got '0s'"),
        (["create", "a", "--role", "router"], "'router' is not one of 'invoker', 'viewer', 'operator'"),
        (["create", "a", "--endpoint", "no spaces"], "'no spaces' is no name of an endpoint"),
        (["create", "a", "--role", "viewer", "--endpoint", "e"], "viewers call no endpoint: leave it out"),
        (["revoke", "alice"], "an id is 10 of a-z and 0-9, as `slotmesh token list` shows it"),
    ],
)
def test_wrong_usage_changes_nothing(path: Path, arguments: list[str], told: str) -> None:
    said = run(path, *arguments)
    assert said.exit_code == 2
    assert told in words(said)
    assert not said.stdout
    assert not path.exists()


def test_a_file_that_cannot_be_used_is_named_with_the_way_out(path: Path) -> None:
    for arguments in (["list"], ["revoke", "a" * 10]):
        said = run(path, *arguments)
        assert (said.exit_code, said.stdout) == (1, "")
        assert f"{path}: there is no such file of tokens (--tokens); `slotmesh token create NAME" in said.stderr
    run(path, "create", "alice")
    said = run(path, "revoke", "a" * 10)
    assert said.exit_code == 2
    assert said.stderr.startswith(f"{path}: there is no token aaaaaaaaaa, nothing was revoked; `slotmesh token list`")
    path.chmod(0o644)
    assert f"`chmod 600 {path}`" in run(path, "create", "bob").stderr
    path.unlink()
    said = run(path / "nowhere" / "tokens.json", "create", "bob")
    assert (said.exit_code, said.stdout) == (1, "")
    assert "the file of tokens cannot be written: No such file or directory" in said.stderr
