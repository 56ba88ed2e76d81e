"""Lists of revoked certificates: what they take back, and which of them are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509 import load_pem_x509_certificates

from slotmesh.security.file_watch import LOOK_S
from slotmesh.security.tls import BadTls, TlsSource
from slotmesh.security.tls.revocations import MOST_LISTS, read_revocations
from slotmesh.security.tls.trust import TrustedAuthorities
from tests.support.certificates import Authority
from tests.unit.security.test_trusted_authorities import Issuing


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs")


def trust(authority: Authority, lists: bytes) -> TrustedAuthorities:
    authorities = load_pem_x509_certificates(authority.ca.read_bytes())
    return TrustedAuthorities(authorities, read_revocations(lists, authorities))


def leaf(authority: Authority, name: str) -> tuple[Path, list[x509.Certificate]]:
    files = authority.issue("client", name)
    assert files.cert is not None
    return files.cert, load_pem_x509_certificates(files.cert.read_bytes())


def refusal(authority: Authority, lists: bytes) -> str:
    with pytest.raises(BadTls) as caught:
        trust(authority, lists)
    return str(caught.value)


def test_what_is_named_is_taken_back_and_nothing_else(ours: Authority) -> None:
    (path, alice), (_, bob) = leaf(ours, "alice"), leaf(ours, "bob")
    lists = ours.revoke(path)
    trusted = trust(ours, lists)
    assert trusted.problem(alice) == "was revoked"
    assert trusted.problem(bob) is None
    assert trusted.problem([*bob, *alice]) == "was revoked", "whatever stands between an authority and a leaf counts"
    assert trusted.revocations.next_update is not None
    assert trusted.revocations.next_update > datetime.now(UTC).timestamp()


def test_lists_add_up(ours: Authority) -> None:
    (of_alice, alice), (of_bob, bob) = leaf(ours, "alice"), leaf(ours, "bob")
    first = ours.revoke(of_alice)
    ours._revoked.clear()
    trusted = trust(ours, b"# two of them\n" + first + ours.revoke(of_bob))
    assert [trusted.problem(each) for each in (alice, bob)] == ["was revoked"] * 2


def test_lists_of_others_count_for_nothing(ours: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    other.stand_below(ours)  # another name
    path, alice = leaf(ours, "alice")
    trusted = trust(ours, other.revoke(path))
    assert trusted.problem(alice) is None
    assert (trusted.revocations.of_others, trusted.revocations.lists) == (1, 1)


def test_nobody_signs_for_another_of_the_same_name(ours: Authority, theirs: Authority) -> None:
    assert "that its authority has not signed" in refusal(ours, theirs.revoke(leaf(ours, "alice")[0]))


def test_changed_and_partly_written_lists_are_refused(ours: Authority) -> None:
    lists = ours.revoke(leaf(ours, "alice")[0])
    lines = lists.splitlines(keepends=True)
    assert "not signed" in refusal(ours, b"".join([*lines[:-3], lines[-3][:8], b"AAAA", lines[-3][12:], *lines[-2:]]))
    for wrong in (
        b"",
        b"nothing",
        lists[:-30],
        lists + lists[:100],
        ours.ca.read_bytes(),
        lists + ours.ca.read_bytes(),
    ):
        assert "something else than whole lists" in refusal(ours, wrong)
    assert "cannot be understood" in refusal(ours, b"".join([lines[0], *lines[2:]]))
    assert f"{MOST_LISTS} is the bound" in refusal(ours, lists * (MOST_LISTS + 1))


@pytest.mark.parametrize(
    "extension",
    [x509.DeltaCRLIndicator(1), x509.IssuingDistributionPoint(None, None, False, False, None, True, False)],
    ids=["delta", "of others"],
)
def test_lists_that_do_not_count_alone_are_refused(ours: Authority, extension: Any) -> None:
    assert "which is not understood here" in refusal(ours, ours.signed_list(extension=(extension, True)))
    assert trust(ours, ours.signed_list(extension=(x509.CRLNumber(3), False))).revocations.lists == 1


def test_who_may_not_sign_lists_has_signed_none(ours: Authority) -> None:
    root = Issuing("root", ca=True, signs=True)
    ours._pair = root  # type: ignore[assignment]  # it has the same parts
    with pytest.raises(BadTls, match="has not signed"):
        read_revocations(ours.signed_list(), [root.certificate])


class Watched:
    """A source whose time is moved by hand."""

    def __init__(self, authority: Authority) -> None:
        self.now = 0.0
        self.source = TlsSource(authority.issue("router"), now=lambda: self.now)

    def look(self) -> int:
        """A second later: how many are revoked."""
        self.now += LOOK_S
        return len(self.source.look().trust.revocations.revoked)


def test_a_list_is_read_when_it_comes_and_when_it_changes(ours: Authority) -> None:
    watched = Watched(ours)
    assert watched.look() == 0
    for count in (1, 2):
        ours.revoke(leaf(ours, "alice")[0])
        assert watched.look() == count
    kept = watched.source.current().trust
    assert watched.look() == 2
    assert watched.source.current().trust is kept, "who has been checked is not checked again"


@pytest.mark.parametrize("what", ["gone", "of nothing", "of others"])
def test_what_was_revoked_stays_so_where_the_list_cannot_be_used(ours: Authority, theirs: Authority, what: str) -> None:
    ours.revoke(leaf(ours, "alice")[0])
    watched = Watched(ours)
    if what == "gone":
        ours.crl.unlink()
    else:
        ours.crl.write_bytes(b"" if what == "of nothing" else theirs.signed_list())
    assert watched.look() == 1
    assert watched.source.failed_reloads == 1
    assert watched.look() == 1
    assert watched.source.failed_reloads == 1, "it is told once"
    ours.revoke(leaf(ours, "bob")[0])
    assert watched.look() == 2


def test_a_process_does_not_start_with_a_list_that_cannot_be_used(ours: Authority) -> None:
    ours.crl.write_bytes(b"-----BEGIN X509 CRL-----")
    with pytest.raises(BadTls, match=r"ca\.crl: holds something else"):
        ours.source("router")
