"""What tells one credential from another, part by part: exactly one part differs, and it is another one.

A certificate is named by its issuer and its serial number, a peer by its certificate and what it sent with it, a token
by all that its holder is.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from slotmesh.security.authentication import PeerCertificates
from slotmesh.security.identity import Identity, Role, identity_of
from slotmesh.security.tls.revocations import NOTHING_REVOKED, Revocations, TrustedAuthorities, read_revocations
from slotmesh.security.tokens.jwt_tokens import IssuerKey
from slotmesh.security.tokens.static_tokens import StaticToken, StaticTokens
from tests.support.certificates import Authority
from tests.unit.security.test_trusted_authorities import Issuing

NOW: Final = datetime.now(UTC)


def issued(by: Issuing, serial: int) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(Issuing("leaf").name)
        .issuer_name(by.name)
        .public_key(Issuing("leaf").key.public_key())
        .serial_number(serial)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=1))
    )
    return builder.sign(by.key, hashes.SHA256())


def revoking(by: Issuing, *serials: int, age: timedelta = timedelta(0), ends: timedelta = timedelta(days=1)) -> bytes:
    builder = x509.CertificateRevocationListBuilder().issuer_name(by.name).last_update(NOW - age)
    builder = builder.next_update(NOW + ends)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key()), False)
    for serial in serials:
        revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW)
        builder = builder.add_revoked_certificate(revoked.build())
    return builder.sign(by.key, hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.fixture(scope="module")
def authorities() -> list[Issuing]:
    return [Issuing(name, ca=True) for name in ("one", "two", "three")]


def trusting(authorities: list[Issuing], *lists: bytes) -> TrustedAuthorities:
    certificates = [each.certificate for each in authorities]
    return TrustedAuthorities(certificates, read_revocations(b"".join(lists), certificates))


@pytest.mark.parametrize("revoked_by", range(3))
@pytest.mark.parametrize("revoked", [7, 8])
def test_a_certificate_is_named_by_its_issuer_and_its_serial_number(
    authorities: list[Issuing], revoked_by: int, revoked: int
) -> None:
    """All three authorities have issued one of each number."""
    lists = [revoking(each, *((revoked, 99) if at == revoked_by else (99,))) for at, each in enumerate(authorities)]
    trusted = trusting(authorities, *lists)
    for at, each in enumerate(authorities):
        for serial in (7, 8, 9):
            is_revoked = (at, serial) == (revoked_by, revoked)
            problem = trusted.problem([issued(each, serial)])
            assert problem == ("was revoked" if is_revoked else None), (at, serial)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_certificate_of_a_chain_may_be_the_revoked_one(count: int) -> None:
    """Whichever of them was revoked, by whom it was issued."""
    chain = [Issuing("root", ca=True)]
    for depth in range(count):
        chain.append(Issuing(f"a{depth}", chain[-1], ca=True))
    leaf = Issuing("leaf", chain[-1], ca=False)
    shown = [leaf.certificate, *(each.certificate for each in reversed(chain[1:]))]
    root = chain[0].certificate
    assert TrustedAuthorities([root]).problem(shown) is None
    for place, each in enumerate(shown):
        entry = (each.issuer.public_bytes(), each.serial_number)
        assert TrustedAuthorities([root], Revocations(frozenset({entry}))).problem(shown) == "was revoked", place


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_of_several_lists_the_first_that_ends_and_the_newest_of_each_authority_count(
    authorities: list[Issuing], order: tuple[int, ...]
) -> None:
    days = (3, 1, 2)
    lists = [
        revoking(authorities[at % 2], at + 1, age=timedelta(hours=days[at]), ends=timedelta(days=days[at]))
        for at in order
    ]
    found = read_revocations(b"".join(lists), [each.certificate for each in authorities])
    assert found.next_update == pytest.approx((NOW + timedelta(days=1)).timestamp(), abs=1.0)
    names = [each.certificate.subject.public_bytes() for each in authorities]
    assert found.revoked == {(names[0], 1), (names[1], 2), (names[0], 3)}
    made = {names[0]: NOW - timedelta(hours=2), names[1]: NOW - timedelta(hours=1)}
    assert found.made_at == {name: pytest.approx(at.timestamp(), abs=1.0) for name, at in made.items()}


def test_lists_without_an_end_leave_the_end_to_the_others() -> None:
    assert NOTHING_REVOKED.next_update is None


@pytest.mark.parametrize("older", range(3))
def test_lists_go_back_where_that_of_any_authority_does(authorities: list[Issuing], older: int) -> None:
    certificates = [each.certificate for each in authorities]
    before = Revocations(made_at={each.subject.public_bytes(): 10.0 for each in certificates})
    for made_at, goes_back in ((9.0, True), (10.0, False), (11.0, False), (None, True)):
        now = {each.subject.public_bytes(): 10.0 for each in certificates}
        name = certificates[older].subject.public_bytes()
        if made_at is None:
            del now[name]
        else:
            now[name] = made_at
        assert Revocations(made_at=now).go_back_behind(before, certificates) is goes_back, made_at
        others = [each for each in certificates if each.subject.public_bytes() != name]
        assert not Revocations(made_at=now).go_back_behind(before, others), "who is not trusted any more counts no more"


# --- holders of tokens ------------------------------------------------------------------------------------------------

HOLDER: Final = Identity(
    name="client/alice", roles=frozenset({Role.INVOKER}), endpoints=frozenset({"a", "b"}), expires_at=100.0
)
TOKEN: Final = StaticToken(id="a" * 10, identity=HOLDER, digest=b"d" * 32, created_at=0.0)


@pytest.mark.parametrize(
    ("change", "stays"),
    [
        ({}, True),
        ({"identity": replace(HOLDER, name="client/bob")}, False),
        ({"identity": replace(HOLDER, roles=frozenset({Role.VIEWER}))}, False),
        ({"identity": replace(HOLDER, roles=frozenset({Role.VIEWER, Role.INVOKER}))}, False),
        ({"identity": replace(HOLDER, endpoints=frozenset({"a"}))}, False),
        ({"identity": replace(HOLDER, endpoints=None)}, False),
        ({"digest": b"e" * 32}, False),
        ({"revoked_at": 1.0}, False),
    ],
)
def test_a_token_that_was_accepted_gives_what_it_gave_or_nothing(change: dict[str, Any], stays: bool) -> None:
    """With others before it and behind it."""
    others = [replace(TOKEN, id=str(number) * 10, digest=bytes([number]) * 32) for number in range(4)]
    tokens = (*others[:2], replace(TOKEN, **change), *others[2:])
    assert StaticTokens(tokens).has(TOKEN) is stays


@pytest.mark.parametrize(
    ("change", "same"),
    [({}, True), ({"members": "another text"}, True), ({"algorithms": ("ES384",)}, False), ({"public": "q"}, False)],
)
def test_a_key_is_the_same_by_what_it_verifies(change: dict[str, Any], same: bool) -> None:
    key = IssuerKey(algorithms=("ES256",), public="p", members="m")
    assert key.is_same_as(replace(key, **change)) is same
    assert not key.is_same_as(None)


@pytest.mark.parametrize(
    ("uri", "is_somebody"),
    [
        ("spiffe://mesh.test/client/alice", True),
        ("spiffe://other.test/client/alice", False),
        ("spiffe://mesh.test.other/client/alice", False),
        ("spiffe://mesh.test/clients/alice", False),
        ("spiffe://mesh.test/client/", False),
        ("spiffe://mesh.test/client", False),
        ("spiffe://mesh.test/router/alice", False),
        ("spiffe://mesh.test/client/alice/more", False),
        ("spiffe://mesh.test/client/alice?x", False),
        ("https://mesh.test/client/alice", False),
    ],
)
def test_a_name_is_somebodys_only_if_each_part_is(uri: str, is_somebody: bool) -> None:
    assert (identity_of(uri, "mesh.test") is not None) is is_somebody


class Shown:
    """A connection, as the server sees what was shown."""

    def __init__(self, pem: bytes, chain: bytes = b"") -> None:
        self._shown = {"x509_pem_cert": [pem], **({"x509_pem_cert_chain": [chain]} if chain else {})}

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._shown


def test_a_peer_is_judged_by_what_it_has_sent_with_its_certificate(tmp_path: Path) -> None:
    """The same certificate with another chain is asked of the authorities again."""
    root, middle = Authority(tmp_path / "root"), Authority(tmp_path / "middle")
    middle.stand_below(root)
    cert = middle.issue("client", "alice").cert
    assert cert is not None
    own, between = [each.public_bytes(Encoding.PEM) for each in x509.load_pem_x509_certificates(cert.read_bytes())]
    trusted = TrustedAuthorities(x509.load_pem_x509_certificates(root.ca.read_bytes()))
    peers = PeerCertificates(root.trust_domain, lambda: trusted)
    for _ in range(2):
        for chain, fits in ((b"", False), (between, True), (own + between, True), (own, False)):
            found = peers.credential_of(Shown(own, chain))
            assert found is not None
            assert (found.problem() is None) is fits
    other = middle.issue("client", "bob").cert
    assert other is not None
    bob = peers.credential_of(Shown(other.read_bytes().partition(between)[0], between))
    assert bob is not None
    assert bob.identity.name == "client/bob"
