"""Files that decide who may do what: whose they may be, and what others may do with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slotmesh.security.secret_files import FileGuard, UnusableFile, owner_problem, read_guarded
from slotmesh.security.tls import BadTls, TlsFiles
from slotmesh.security.tokens import Tokens
from tests.support.certificates import Authority
from tests.support.issuers import RULES, Issuer
from tests.support.token_files import created

OURS = os.geteuid()
OTHERS = 12_345


def owned_by(uid: int) -> os.stat_result:
    return os.stat_result((0o100600, 1, 1, 1, uid, uid, 1, 0, 0, 0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    return path


def test_files_of_root_and_of_the_own_user_are_used(path: Path) -> None:
    assert owner_problem(path, owned_by(0)) is None
    assert owner_problem(path, owned_by(OURS)) is None
    problem = owner_problem(path, owned_by(OTHERS)) or ""
    assert problem.startswith(f"belongs to another user of this machine (uid {OTHERS}), who can change it")
    assert problem.endswith(f"`chown {OURS} {path}`")


@pytest.mark.parametrize("guard", FileGuard)
def test_files_of_other_users_are_not_read(path: Path, guard: FileGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fstat", lambda _: owned_by(OTHERS))
    with pytest.raises(UnusableFile, match=f"{path}: the file belongs to another user"):
        read_guarded(path, "file", guard)
    assert read_guarded(path, "file", guard, of_any_owner=True) == b""


def test_who_could_change_whom_to_trust_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates of authorities, and the keys of an issuer, are public: their owner has to be known all the same."""
    authority, issuer, tokens = Authority(tmp_path), Issuer(tmp_path), tmp_path / "tokens.json"
    created(tokens)
    monkeypatch.setattr(
        "slotmesh.security.secret_files.owner_problem", lambda path, _: f"is of another user: {path.name}"
    )
    with pytest.raises(BadTls, match=r"is of another user: ca\.crt"):
        TlsFiles(authority.ca).read()
    with pytest.raises(UnusableFile, match=r"is of another user: jwks\.json"):
        Tokens(jwks=issuer.jwks, rules=RULES)
    with pytest.raises(UnusableFile, match=r"is of another user: tokens\.json"):
        Tokens(tokens)


@pytest.mark.parametrize("name", ["ca.crt", "jwks.json"])
def test_others_may_read_whom_to_trust_and_not_write_it(tmp_path: Path, name: str) -> None:
    authority, issuer = Authority(tmp_path), Issuer(tmp_path)
    (tmp_path / name).chmod(0o644)
    TlsFiles(authority.ca).read()
    Tokens(jwks=issuer.jwks, rules=RULES)
    (tmp_path / name).chmod(0o664)
    with pytest.raises((BadTls, UnusableFile), match=rf"{name}: .*can be written by others on this machine"):
        TlsFiles(authority.ca).read() if name == "ca.crt" else Tokens(jwks=issuer.jwks, rules=RULES)
