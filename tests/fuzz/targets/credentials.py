"""What says who somebody is: tokens, files of tokens, sets of keys, certificates, names in them."""

from __future__ import annotations

import base64
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID

from slotmesh.security.authentication import PeerCertificates
from slotmesh.security.identity import Identity, Role, identity_of, trust_domain_of, uri_of
from slotmesh.security.tls.certificates import BadTls, public_key_of, read_certificates
from slotmesh.security.tls.revocations import TrustedAuthorities, read_revocations
from slotmesh.security.tokens.jwt_tokens import BadKeySet, identify_jwt, parse_keys
from slotmesh.security.tokens.rules import BadToken, JwtRules
from slotmesh.security.tokens.static_tokens import BadTokenFile, StaticTokens, new_secret, parse_tokens, write_tokens
from slotmesh.security.tokens.token_file import with_created
from tests.fuzz.source import Source
from tests.fuzz.targets.documents import json_document

RULES: Final = JwtRules(issuer="i", audience="a")
DOMAIN: Final = "slotmesh.local"
_CLAIMS: Final = ("sub", "exp", "nbf", "iat", "aud", "iss", "jti", RULES.roles_claim, RULES.endpoints_claim)


@contextmanager
def jwts() -> Iterator[Callable[[bytes], object]]:
    """Tokens with a right signature and any claims, and any text that looks like a token."""
    private = ec.derive_private_key(7, ec.SECP256R1())
    raw = jwt.algorithms.ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    keys = parse_keys(json.dumps({"keys": [{**raw, "kid": "k", "alg": "ES256"}]}).encode(), ("ES256",))

    def run(data: bytes) -> None:
        source = Source(data)
        if source.below(3):
            claims: dict[str, Any] = {"sub": "alice", "exp": time.time() + 60, "aud": "a", "iss": "i"}
            claims |= {source.choice(_CLAIMS): json_document(source) for _ in range(source.below(4))}
            body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
            head = base64.urlsafe_b64encode(b'{"alg":"ES256","kid":"k"}').rstrip(b"=").decode()
            signed = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
            text = f"{head}.{body}"
            token = f"{text}.{base64.urlsafe_b64encode(signed.sign(text.encode(), private)).rstrip(b'=').decode()}"
        else:
            token = source.rest().decode("utf-8", "replace")
        try:
            identity, _ = identify_jwt(token, keys, RULES)
        except BadToken as error:
            if len(token) > 20 and token in str(error):
                raise AssertionError("a token is shown") from error
            return
        if Role.ROUTER in identity.roles or Role.REPLICA in identity.roles:
            raise AssertionError(f"a token makes a member: {identity!r}")

    yield run


@contextmanager
def token_files() -> Iterator[Callable[[bytes], object]]:
    token, token_id = new_secret()
    identity = Identity(name="alice", roles=frozenset({Role.VIEWER}))
    whole = json.loads(write_tokens(with_created(StaticTokens(), token, token_id, identity, 1e9).tokens))

    def run(data: bytes) -> None:
        source = Source(data)
        if source.below(3):
            document = json.loads(json.dumps(whole))
            entry = document["tokens"][0]
            for _ in range(source.below(4)):
                entry[source.choice((*entry, "x"))] = json_document(source)
            content = json.dumps(document).encode()
        else:
            content = source.rest()
        with suppress(BadTokenFile):
            tokens = parse_tokens(content)
            with suppress(BadToken):
                tokens.find(source.rest().decode("utf-8", "replace"), 1e9)

    yield run


@contextmanager
def key_sets() -> Iterator[Callable[[bytes], object]]:
    names = ("kty", "kid", "alg", "use", "crv", "x", "y", "n", "e", "k", "key_ops", "d")
    texts = ("EC", "RSA", "OKP", "oct", "k", "ES256", "RS256", "EdDSA", "sig", "P-256", "Ed25519", "AQAB", "AA")

    def run(data: bytes) -> None:
        source = Source(data)
        content = source.rest() if source.below(3) == 0 else b""
        if not content:
            entries = [
                {
                    source.choice(names): source.choice(texts) if source.below(3) else json_document(source)
                    for _ in names
                }
                for _ in range(source.below(4))
            ]
            content = json.dumps({"keys": entries}).encode()
        with suppress(BadKeySet):
            parse_keys(content, RULES.algorithms)

    yield run


@contextmanager
def certificates() -> Iterator[Callable[[bytes], object]]:
    """A certificate and its key, of which some bytes are others: as files, and as peers show them."""
    key = ec.derive_private_key(7, ec.SECP256R1())
    der = _certificate(key).public_bytes(serialization.Encoding.DER)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    authority = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"
    trusted = TrustedAuthorities(x509.load_pem_x509_certificates(authority))
    peers = PeerCertificates(DOMAIN, lambda: trusted)

    def run(data: bytes) -> None:
        source, changed, changed_key = Source(data), bytearray(der), bytearray(key_pem)
        for _ in range(source.below(5)):
            at = (source.byte() * 256 + source.byte()) % len(changed)
            changed[at] = source.byte()
            changed_key[at % len(key_pem)] = source.byte()
        pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(changed) + b"-----END CERTIFICATE-----\n"
        pem = source.rest() if source.below(6) == 1 else pem
        with suppress(BadTls):
            read_certificates(pem)
        with suppress(BadTls):
            public_key_of(bytes(changed_key))
        shown: Callable[[], object] = partial(dict, x509_pem_cert=[pem], x509_pem_cert_chain=[pem + authority])
        if (peer := peers.credential_of(SimpleNamespace(auth_context=shown))) is not None:
            peer.problem()

    with warnings.catch_warnings():
        # Of what a later version of the library refuses.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        yield run


def _certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    uri = x509.UniformResourceIdentifier(uri_of(DOMAIN, "client", "alice"))
    began = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, began, began + timedelta(days=1))
    return builder.add_extension(x509.SubjectAlternativeName([uri]), critical=False).sign(key, hashes.SHA256())


@contextmanager
def revocations() -> Iterator[Callable[[bytes], object]]:
    """A list of revoked certificates, of which some bytes are others: it says nothing that was not signed."""
    key = ec.derive_private_key(7, ec.SECP256R1())
    authority, began = _certificate(key), datetime(2026, 1, 1, tzinfo=UTC)
    entry = x509.RevokedCertificateBuilder(7, began).build()
    builder = x509.CertificateRevocationListBuilder(authority.subject, began, began + timedelta(days=1))
    pem = builder.add_revoked_certificate(entry).sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    der = base64.b64decode(b"".join(pem.splitlines()[1:-1]))
    sound = read_revocations(pem, [authority]).revoked

    def run(data: bytes) -> None:
        source, changed = Source(data), bytearray(der)
        for _ in range(source.below(5)):
            changed[source.byte() % len(changed)] = source.byte()
        block = b"-----BEGIN X509 CRL-----\n" + base64.encodebytes(changed) + b"-----END X509 CRL-----\n"
        with suppress(BadTls):
            found = read_revocations(source.rest() if source.below(6) == 1 else block, [authority])
            if found.revoked and found.revoked != sound:
                raise AssertionError(f"nobody has signed {found!r}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        yield run


@contextmanager
def identities() -> Iterator[Callable[[bytes], object]]:
    def run(data: bytes) -> None:
        uri = data.decode("utf-8", "replace")
        for each in (uri, f"spiffe://{DOMAIN}/{uri}"):
            trust_domain_of(each)
            identity = identity_of(each, DOMAIN)
            if identity is not None and (len(each) > 512 or not each.isascii() or not each.isprintable()):
                raise AssertionError(f"{each!r} is {identity!r}")

    yield run


TARGETS: Final = {
    "credentials-jwts": jwts,
    "credentials-token-files": token_files,
    "credentials-key-sets": key_sets,
    "credentials-certificates": certificates,
    "credentials-revocations": revocations,
    "credentials-identities": identities,
}
