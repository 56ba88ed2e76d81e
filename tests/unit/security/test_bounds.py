"""Every bound of what decides who is let in: exactly at it something passes, one step beyond it is refused.

The numbers are written down by hand, and not asked of the code under test.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.x509 import load_pem_x509_certificates

from slotmesh.calls.fair_shares import FairBound
from slotmesh.runtime.channels import NoToken, TokenSource
from slotmesh.security.identity import Identity, Role, identity_of
from slotmesh.security.quotas import Quota, QuotaKind, RateQuota
from slotmesh.security.rpc_roles import has_expired
from slotmesh.security.secret_files import FileGuard, UnusableFile, read_guarded
from slotmesh.security.tls import BadTls
from slotmesh.security.tls.revocations import TrustedAuthorities, blocks_of
from slotmesh.security.tokens.jwt_tokens import BadKeySet, parse_keys
from slotmesh.security.tokens.rules import BadToken, JwtRules, TokenProblem
from slotmesh.security.tokens.static_tokens import (
    BadTokenFile,
    StaticToken,
    StaticTokens,
    digest_of,
    is_list_of_endpoints,
    parse_tokens,
    write_tokens,
)
from slotmesh.security.tokens.verifier import Tokens
from tests.support.edges import Edge, each_edge
from tests.unit.security.test_trusted_authorities import Issuing

TOKEN: Final = f"smt_{'a' * 10}_{'b' * 43}"
HOLDER: Final = StaticToken(
    id="a" * 10,
    identity=Identity(name="client/alice", roles=frozenset({Role.INVOKER}), expires_at=100.0),
    digest=digest_of(TOKEN),
    created_at=0.0,
)
LIST: Final = b"-----BEGIN X509 CRL-----\nAA==\n-----END X509 CRL-----\n"


def is_read(count: int, endpoints: int = 1) -> bool:
    identity = replace(HOLDER.identity, endpoints=frozenset(f"e{number}" for number in range(endpoints)))
    tokens = (
        replace(HOLDER, id=f"{number:010}", digest=digest_of(str(number)), identity=identity) for number in range(count)
    )
    try:
        return len(parse_tokens(write_tokens(tokens)).tokens) == count
    except BadTokenFile:
        return False


def are_lists(count: int) -> bool:
    try:
        return len(blocks_of(LIST * count)) == count
    except BadTls:
        return False


def is_sent(characters: int) -> bool:
    try:
        return TokenSource("t" * characters).authorization() == f"Bearer {'t' * characters}"
    except NoToken:
        return False


def is_looked_up(characters: int) -> bool:
    """Whether a token of this length is looked for: one that is too long is not."""
    with pytest.raises(BadToken) as caught:
        Tokens().verify("smt_" + "x" * (characters - 4))
    return caught.value.problem is TokenProblem.UNKNOWN


def encoded(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes((number.bit_length() + 7) // 8)).rstrip(b"=").decode()


def rsa(kid: str, bits: int = 2048) -> dict[str, Any]:
    return {"kty": "RSA", "kid": kid, "e": "AQAB", "n": encoded((1 << (bits - 1)) + 1)}


def are_keys(*entries: dict[str, Any]) -> bool:
    try:
        return len(parse_keys(json.dumps({"keys": entries}).encode(), ("RS256",))) == len(entries)
    except BadKeySet:
        return False


def is_vouched_for(between: int) -> bool:
    chain = [Issuing("a0", ca=True)]
    for depth in range(between):
        chain.append(Issuing(f"a{depth + 1}", chain[-1], ca=True))
    root, *middle = chain
    leaf = Issuing("leaf", chain[-1], ca=False)
    trusted = TrustedAuthorities([root.certificate])
    return trusted.vouch_for([each.certificate for each in (leaf, *reversed(middle))])


def is_quota(amount: int, first: int = 0) -> bool:
    quota = Quota(QuotaKind.CALLS, 10, "s")
    quota.take("client/a", first)
    quota.take("client/b", 10)
    return quota.refusal("client/a", amount - first) is None


def is_burst(times: int) -> bool:
    quota = RateQuota(QuotaKind.CHANGES, 5, "s")
    return all(quota.take("operator/o", 100.0) is None for _ in range(times))


def shared() -> FairBound[str]:
    bound: FairBound[str] = FairBound(100, share=60, reserve=10, floor=4)
    bound.take("a", 1)
    return bound


def is_share(amount: int) -> bool:
    return shared().over("a", amount - 1) is None


def is_within_all(amount: int) -> bool:
    bound = shared()
    bound.take("b", 39)
    return bound.over("c", amount - 40) is None


def is_within_reserve(amount: int) -> bool:
    bound = shared()
    bound.take("b", 59)
    bound.take("c", 47)
    return bound.over("d", amount - 107) is None


def is_newcomer(amount: int) -> bool:
    bound = shared()
    bound.take("b", 59)
    bound.take("c", 40)
    return bound.over("d", amount) is None


def is_named(characters: int) -> bool:
    return identity_of(f"spiffe://mesh.test/client/{'a' * characters}", "mesh.test") is not None


def is_leeway(seconds: int) -> bool:
    try:
        return bool(JwtRules(issuer="i", audience="a", leeway_s=seconds))
    except ValueError:
        return False


EDGES: Final = (
    Edge("tokens of a file", 2_000, is_read),
    Edge("endpoints of a token of a file", 100, lambda n: is_read(1, n)),
    Edge("endpoints of a list", 100, lambda n: is_list_of_endpoints([f"e{number}" for number in range(n)])),
    Edge("lists of revoked certificates", 16, are_lists),
    Edge("certificates between an authority and a leaf", 4, is_vouched_for),
    Edge("characters of a token that a client sends", 8_192, is_sent),
    Edge("characters of a token that a server looks for", 8_192, is_looked_up),
    Edge("keys of an issuer", 100, lambda n: are_keys(*(rsa(str(number)) for number in range(n)))),
    Edge("characters of a key's id", 256, lambda n: are_keys(rsa("k" * n))),
    Edge("bits of a key", 8_192, lambda n: are_keys(rsa("k", n))),
    Edge("what a caller may have", 10, is_quota),
    Edge("what a caller may have that has something", 10, lambda n: is_quota(n, first=7)),
    Edge("changes at the same moment", 50, is_burst),
    Edge("the share of one holder", 60, is_share),
    Edge("what all may have", 100, is_within_all),
    Edge("what all may have with the reserve", 110, is_within_reserve),
    Edge("what a newcomer may have of the reserve", 4, is_newcomer),
    Edge("characters of a name", 63, is_named),
    Edge("seconds of leeway", 300, is_leeway),
)


@each_edge(EDGES)
def test_exactly_at_the_bound_it_passes_and_one_beyond_it_is_refused(edge: Edge) -> None:
    edge.check()


def test_the_least_key() -> None:
    assert [are_keys(rsa("k", bits)) for bits in (2_047, 2_048)] == [False, True]


@pytest.mark.parametrize("guard", FileGuard)
def test_a_file_of_exactly_the_largest_size_is_read(tmp_path: Path, guard: FileGuard) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    for size in (0, 2**20 - 1, 2**20):
        path.write_bytes(b"x" * size)
        assert len(read_guarded(path, "file", guard)) == size
    path.write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(UnusableFile, match="is larger than 1024 KiB"):
        read_guarded(path, "file", guard)


def test_a_rate_is_full_again_exactly_when_its_time_has_passed() -> None:
    for after_s, fits in ((0.25, True), (0.24, False)):
        quota = RateQuota(QuotaKind.CHANGES, 4, "s")
        while quota.take("operator/o", 100.0) is None:
            pass
        assert (quota.take("operator/o", 100.0 + after_s) is None) is fits, after_s


def test_a_credential_ends_exactly_when_it_says() -> None:
    tokens = StaticTokens((HOLDER,))
    assert tokens.find(TOKEN, 99.999) is HOLDER
    with pytest.raises(BadToken) as caught:
        tokens.find(TOKEN, 100.0)
    assert caught.value.problem is TokenProblem.EXPIRED
    assert [has_expired(HOLDER.identity, now) for now in (99.999, 100.0)] == [False, True]


def test_an_authority_counts_from_exactly_its_begin_to_exactly_its_end() -> None:
    root = Issuing("root", ca=True)
    leaf = Issuing("leaf", root, ca=False)
    (certificate,) = load_pem_x509_certificates(root.pem)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    trusted = TrustedAuthorities([root.certificate])
    tick = timedelta(microseconds=1)
    found = [trusted.vouch_for([leaf.certificate], now) for now in (begin - tick, begin, end - tick, end)]
    assert found == [False, True, True, False]
