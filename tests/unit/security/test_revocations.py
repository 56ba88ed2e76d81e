"""Lists of revoked certificates: what they take back, and which of them are refused."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificates
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from slotmesh.security.authentication import PeerCertificate
from slotmesh.security.identity import Identity
from slotmesh.security.secret_files import LOOK_S
from slotmesh.security.tls import BadTls, TlsSource
from slotmesh.security.tls.revocations import MOST_LISTS, TrustedAuthorities, read_revocations
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
    ours.revoked.clear()
    trusted = trust(ours, b"# two of them\n" + first + ours.revoke(of_bob))
    assert [trusted.problem(each) for each in (alice, bob)] == ["was revoked"] * 2


def test_lists_of_others_count_for_nothing(ours: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    other.stand_below(ours)  # another name
    path, alice = leaf(ours, "alice")
    trusted = trust(ours, other.revoke(path))
    assert trusted.problem(alice) is None
    assert (trusted.revocations.unsigned, trusted.revocations.made_at) == (1, {})


def test_a_name_in_other_bytes_is_the_same_authority(ours: Authority) -> None:
    """Its list takes back what it has issued, in which its name is in its own bytes."""
    path, alice = leaf(ours, "alice")
    ours.revoke(path)
    subject = ours._pair.certificate.subject
    (common,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    printable = x509.NameAttribute(NameOID.COMMON_NAME, common.value, _ASN1Type.PrintableString)
    lists = ours.signed_list(*ours.revoked, issuer=x509.Name([printable]))
    assert x509.load_pem_x509_crl(lists).issuer.public_bytes() != subject.public_bytes()
    assert trust(ours, lists).problem(alice) == "was revoked"


def test_an_authority_that_was_taken_back_stands_for_nobody(ours: Authority, tmp_path: Path) -> None:
    """Whether or not the peer sends its certificate along."""
    middle = Authority(tmp_path / "middle")
    middle.stand_below(ours)
    own = middle._pair.certificate
    revoked = x509.RevokedCertificateBuilder().serial_number(own.serial_number).revocation_date(datetime.now(UTC))
    authorities = [ours._pair.certificate, own]
    trusted = TrustedAuthorities(authorities, read_revocations(ours.signed_list(revoked.build()), authorities))
    _, (alone, *_) = leaf(middle, "alice")
    assert trusted.problem([alone]) == "is not signed by an authority that is trusted here now"
    assert trusted.problem([alone, own]) == "was revoked"


def test_what_cannot_be_read_is_not_trusted(ours: Authority, theirs: Authority) -> None:
    """A peer chooses what it sends along: a name that the handshake takes and that cannot be read here is no way in."""
    _, alice = leaf(theirs, "alice")
    odd = unreadable()
    with pytest.raises(ValueError, match="issuer"):
        _ = odd.issuer
    revoked = x509.RevokedCertificateBuilder().serial_number(7).revocation_date(datetime.now(UTC)).build()
    for trusted in (trust(ours, ours.signed_list(revoked)), TrustedAuthorities([ours._pair.certificate])):
        peer = PeerCertificate(Identity(name="client/alice", roles=frozenset()), [*alice, odd], partial(_same, trusted))
        assert [peer.problem() is None for _ in range(3)] == [False] * 3


def _same(trusted: TrustedAuthorities) -> TrustedAuthorities:
    return trusted


def unreadable() -> x509.Certificate:
    """With the byte E9 in a name of type T61String."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cafe")])
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, now, now + timedelta(days=1))
    der = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
    return x509.load_der_x509_certificate(der.replace(b"\x0c\x04cafe", b"\x14\x04caf\xe9"))


def test_a_list_whose_names_cannot_be_read_is_refused(ours: Authority) -> None:
    der = x509.load_pem_x509_crl(ours.signed_list()).public_bytes(Encoding.DER)
    at = der.index(b"test authority") - 2
    for tag in (0x05, 0x14, 0x30, 0xFF):
        changed = der[:at] + bytes([tag]) + der[at + 1 :]
        block = b"-----BEGIN X509 CRL-----\n" + base64.encodebytes(changed) + b"-----END X509 CRL-----\n"
        with pytest.raises(BadTls):
            trust(ours, block)


def test_nobody_signs_for_another_of_the_same_name(ours: Authority, theirs: Authority) -> None:
    assert "that its authority has not signed" in refusal(ours, theirs.revoke(leaf(ours, "alice")[0]))


def test_changed_and_partly_written_lists_are_refused(ours: Authority) -> None:
    lists = ours.revoke(leaf(ours, "alice")[0])
    lines = lists.splitlines(keepends=True)
    assert "not signed" in refusal(ours, b"".join([*lines[:-3], lines[-3][:8], b"AAAA", lines[-3][12:], *lines[-2:]]))
    half, of_another_kind = lists + b"-----BEGIN X5", lists + ours.ca.read_bytes()
    for wrong in (b"", b"nothing", lists[:-30], lists + lists[:100], ours.ca.read_bytes(), of_another_kind, half):
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
    assert trust(ours, ours.signed_list(extension=(x509.CRLNumber(3), False))).revocations.made_at


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


@pytest.mark.parametrize("what", ["gone", "of nothing", "of the same name", "of others", "older"])
def test_what_was_revoked_stays_so_where_the_list_cannot_be_used(ours: Authority, theirs: Authority, what: str) -> None:
    """And nothing keeps newer certificates away."""
    ours.revoke(leaf(ours, "alice")[0])
    watched = Watched(ours)
    if what == "gone":
        ours.crl.unlink()
    elif what == "of others":
        theirs.stand_below(ours)
        ours.crl.write_bytes(theirs.signed_list())
    elif what == "older":
        ours.crl.write_bytes(ours.signed_list(age=timedelta(minutes=30)))
    else:
        ours.crl.write_bytes(b"" if what == "of nothing" else theirs.signed_list())
    assert watched.look() == 1
    assert watched.source.failed_reloads == 1
    assert watched.look() == 1
    assert watched.source.failed_reloads == 1, "it is told once"
    before = watched.source.current().cert_pem
    ours.issue("router")
    assert watched.look() == 1
    assert watched.source.current().cert_pem != before
    ours.revoke(leaf(ours, "bob")[0])
    assert watched.look() == 2


def test_with_its_authority_a_list_goes(ours: Authority, tmp_path: Path) -> None:
    """A mesh that has gone to another authority needs no list of the one before."""
    ours.revoke(leaf(ours, "alice")[0])
    watched = Watched(ours)
    another = Authority(tmp_path / "another")
    another.stand_below(Authority(tmp_path / "its root"))
    files = another.issue("router")
    assert files.key is not None
    assert files.cert is not None
    own = another._pair.certificate.public_bytes(Encoding.PEM)
    for name, content in (
        ("router.key", files.key.read_bytes()),
        ("router.crt", files.cert.read_bytes()),
        ("ca.crt", own),
    ):
        (ours.directory / name).write_bytes(content)
    ours.crl.unlink()
    assert watched.look() == 0
    assert watched.source.failed_reloads == 0


def test_a_process_does_not_start_with_a_list_that_cannot_be_used(ours: Authority) -> None:
    ours.crl.write_bytes(b"-----BEGIN X509 CRL-----")
    with pytest.raises(BadTls, match=r"ca\.crl: holds something else"):
        ours.source("router")
