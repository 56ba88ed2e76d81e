"""Certificates that are read again: when, what becomes of bad ones, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slotmesh.security.identity import Role
from slotmesh.security.secret_files import LOOK_S
from slotmesh.security.tls import BadTls, TlsFiles, TlsSource
from tests.support.certificates import Authority
from tests.support.wait import wait_until


class Rotated:
    """A source whose time is moved by hand."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.now = 0.0
        self.source = TlsSource(self.authority.issue("router"), now=lambda: self.now)
        self.source.require_server(Role.ROUTER)

    def look(self) -> bytes | None:
        """A second later."""
        self.now += LOOK_S
        return self.source.look().cert_pem


@pytest.fixture
def rotated(tmp_path: Path) -> Rotated:
    return Rotated(tmp_path)


def test_files_are_looked_at_once_a_second_at_most(rotated: Rotated) -> None:
    first = rotated.source.current()
    rotated.authority.issue("router")
    assert rotated.source.look() is first
    assert rotated.look() != first.cert_pem
    assert rotated.source.version == 2


@pytest.mark.asyncio
async def test_who_asks_on_an_event_loop_is_answered_at_once(rotated: Rotated) -> None:
    """And finds what a thread has read a moment later, though nobody has asked meanwhile."""
    first = rotated.source.current()
    rotated.authority.issue("router")
    rotated.now += LOOK_S
    assert rotated.source.current() is first
    await wait_until(lambda: rotated.source._version == 2)
    assert rotated.source.current().cert_pem != first.cert_pem


def test_bad_files_never_take_the_place_of_good_ones(rotated: Rotated, tmp_path: Path) -> None:
    good = rotated.source.current().cert_pem
    changes: tuple[Callable[[], object], ...] = (
        lambda: rotated.authority.issue("router", not_after=datetime.now(UTC) - timedelta(hours=1)),
        lambda: rotated.authority.issue("router", uri="spiffe://mesh.test/controller"),
        lambda: rotated.authority.issue("router", trust_domain="other.test"),
        lambda: (tmp_path / "router.crt").write_bytes(b""),
        (tmp_path / "router.key").unlink,
    )
    for count, change in enumerate(changes, 1):
        change()
        assert rotated.look() == good
        assert rotated.source.failed_reloads == count
    rotated.authority.issue("router")
    assert rotated.look() != good
    assert rotated.source.failed_reloads == len(changes)


def test_a_pair_is_taken_when_it_is_whole(rotated: Rotated, tmp_path: Path) -> None:
    good, files = rotated.source.current().cert_pem, rotated.source.files
    fresh = Authority(tmp_path / "fresh").issue("router")
    for old, new in ((files.key, fresh.key), (files.cert, fresh.cert)):
        assert old is not None
        assert new is not None
        assert rotated.look() == good
        new.replace(old)
    assert rotated.look() != good


def test_what_is_wrong_is_logged_once_and_has_no_key(rotated: Rotated, caplog: pytest.LogCaptureFixture) -> None:
    files = rotated.source.files
    assert files.key is not None
    key = files.key.read_text().splitlines()[1]
    files.key.chmod(0o644)
    for _ in range(3):
        rotated.look()
    files.key.chmod(0o600)
    rotated.look()
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert "chmod 600" in caplog.text
    assert key not in caplog.text
    files.key.chmod(0o644)
    rotated.look()
    assert len(caplog.records) == 2


def test_a_process_that_starts_waits_for_the_second_half_of_a_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, other = Authority(tmp_path).issue("router"), Authority(tmp_path / "other").issue("router")
    assert files.key is not None
    assert files.cert is not None
    assert other.cert is not None
    assert other.key is not None
    other.key.replace(files.key)
    cert, target = other.cert, files.cert
    monkeypatch.setattr("time.sleep", lambda _: cert.replace(target) if cert.exists() else None)
    assert TlsSource(files).current().cert_pem == target.read_bytes()


def test_a_pair_that_never_matches_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    files, other = Authority(tmp_path).issue("router"), Authority(tmp_path / "other").issue("router")
    with pytest.raises(BadTls, match="is not the key of the certificate"):
        TlsSource(TlsFiles(files.ca, files.cert, other.key))


def test_a_server_is_only_started_as_what_it_is(tmp_path: Path) -> None:
    source = Authority(tmp_path).source("client", "alice")
    with pytest.raises(BadTls, match=r"client-alice\.crt: names spiffe://mesh.test/client/alice, which is no router"):
        source.require_server(Role.ROUTER)
