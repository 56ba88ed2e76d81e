"""JWT: who holds one, and the ways to forge one."""

from __future__ import annotations

import base64
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from slotmesh.security.identity import Role
from slotmesh.security.secret_files import UnusableFile
from slotmesh.security.tokens import BadToken, TokenProblem, Tokens
from slotmesh.security.tokens.rules import REFUSAL, JwtRules
from slotmesh.security.tokens.verifier import KEPT
from tests.support.issuers import AUDIENCE, ISSUER, RULES, Issuer
from tests.support.token_files import accepts


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
def tokens(issuer: Issuer) -> Tokens:
    return Tokens(jwks=issuer.jwks, rules=RULES)


def problem_of(tokens: Tokens, token: str) -> TokenProblem:
    """Why it is refused. Neither the caller nor the log get anything of it."""
    with pytest.raises(BadToken) as caught:
        tokens.identify(token)
    assert str(caught.value) == REFUSAL
    assert not any(part in caught.value.reason for part in token.split(".") if len(part) > 5)
    return caught.value.problem


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_claims_say_who_holds_it(tokens: Tokens, issuer: Issuer) -> None:
    found = tokens.identify(issuer.token(slotmesh_endpoints=["digits"]))
    assert found.name == "client/alice"
    assert found.roles == {Role.INVOKER}
    assert found.endpoints == frozenset({"digits"})
    assert found.expires_at == pytest.approx(time.time() + 60 + RULES.leeway_s, abs=5)
    other = tokens.identify(issuer.token("two", "EdDSA", sub="bob@example.com", slotmesh_roles=["operator"]))
    assert other.name == "operator/bob@example.com"
    assert other.roles == {Role.OPERATOR, Role.VIEWER, Role.INVOKER}
    assert other.endpoints is None
    both = tokens.identify(issuer.token(slotmesh_roles=["viewer", "invoker"], aud=["x", AUDIENCE]))
    assert (both.name, both.roles) == ("client/alice", frozenset({Role.VIEWER, Role.INVOKER}))


def test_members_roles_are_never_given_by_a_token(tokens: Tokens, issuer: Issuer) -> None:
    members = ["router", "replica", "controller"]
    assert tokens.identify(issuer.token(slotmesh_roles=[*members, "viewer", "admin", 7, None])).roles == {Role.VIEWER}
    assert problem_of(tokens, issuer.token(slotmesh_roles=members)) == TokenProblem.CLAIMS


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"iss": "https://issuer.test/"}, TokenProblem.FOREIGN),
        ({"iss": "https"}, TokenProblem.FOREIGN),
        ({"aud": "slot"}, TokenProblem.FOREIGN),
        ({"aud": ["x", "y"]}, TokenProblem.FOREIGN),
        ({"aud": {AUDIENCE: 1}}, TokenProblem.FOREIGN),
        ({"aud": None}, TokenProblem.CLAIMS),
        ({"iss": None}, TokenProblem.CLAIMS),
        ({"sub": None}, TokenProblem.CLAIMS),
        ({"exp": None}, TokenProblem.CLAIMS),
        ({"exp": time.time() - 31}, TokenProblem.EXPIRED),
        ({"exp": "9999999999"}, TokenProblem.CLAIMS),
        ({"exp": True}, TokenProblem.EXPIRED),
        ({"exp": float("inf")}, TokenProblem.MALFORMED),
        ({"exp": float("nan")}, TokenProblem.MALFORMED),
        ({"exp": "soon"}, TokenProblem.MALFORMED),
        ({"nbf": time.time() + 3600}, TokenProblem.NOT_YET_VALID),
        ({"iat": time.time() + 3600}, TokenProblem.NOT_YET_VALID),
        ({"sub": ""}, TokenProblem.CLAIMS),
        ({"sub": "a/../b"}, TokenProblem.CLAIMS),
        ({"sub": "alice\n"}, TokenProblem.CLAIMS),
        ({"sub": "x" * 128}, TokenProblem.CLAIMS),
        ({"slotmesh_roles": None}, TokenProblem.CLAIMS),
        ({"slotmesh_roles": "operator"}, TokenProblem.CLAIMS),
        ({"slotmesh_roles": {"operator": True}}, TokenProblem.CLAIMS),
        ({"slotmesh_roles": [["operator"]]}, TokenProblem.CLAIMS),
        ({"slotmesh_endpoints": []}, TokenProblem.CLAIMS),
        ({"slotmesh_endpoints": "digits"}, TokenProblem.CLAIMS),
        ({"slotmesh_endpoints": 0}, TokenProblem.CLAIMS),
    ],
)
def test_claims_that_are_wrong_are_refused(
    tokens: Tokens, issuer: Issuer, changes: dict[str, Any], problem: TokenProblem
) -> None:
    assert problem_of(tokens, issuer.token(**changes)) == problem


def test_a_clock_may_differ_by_the_leeway(tokens: Tokens, issuer: Issuer) -> None:
    assert accepts(tokens, issuer.token(exp=time.time() - 20, nbf=time.time() + 20))
    strict = Tokens(jwks=issuer.jwks, rules=JwtRules(issuer=ISSUER, audience=AUDIENCE, leeway_s=0))
    assert problem_of(strict, issuer.token(exp=time.time() - 2)) == TokenProblem.EXPIRED


def test_who_cannot_sign_cannot_make_one(tokens: Tokens, issuer: Issuer) -> None:
    good = issuer.token()
    header, claims, signature = good.split(".")
    unsigned = f"{part({'alg': 'none', 'kid': 'one'})}.{claims}."
    assert problem_of(tokens, unsigned) == TokenProblem.MALFORMED
    for algorithm in ("none", "None", "NONE", "", None, 7, ["ES256"]):
        forged = f"{part({'alg': algorithm, 'kid': 'one'})}.{claims}.{signature}"
        assert problem_of(tokens, forged) in {TokenProblem.FORGED, TokenProblem.MALFORMED}
    operator = part(issuer.claims(slotmesh_roles=["operator"]))
    assert problem_of(tokens, f"{header}.{operator}.{signature}") == TokenProblem.FORGED
    stranger = jwt.encode(issuer.claims(), ec.generate_private_key(ec.SECP256R1()), "ES256", {"kid": "one"})
    assert problem_of(tokens, stranger) == TokenProblem.FORGED
    flipped = signature[:5] + ("A" if signature[5] != "A" else "B") + signature[6:]
    assert problem_of(tokens, f"{header}.{claims}.{flipped}") == TokenProblem.FORGED


def test_the_public_key_is_no_shared_secret(tokens: Tokens, issuer: Issuer) -> None:
    public = issuer.keys["one"].public_key()
    forms = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(issuer.public("one")).encode(),
    ]
    for secret in forms:
        signed = f"{part({'alg': 'HS256', 'kid': 'one', 'typ': 'JWT'})}.{part(issuer.claims())}"
        mac = hmac.digest(secret, signed.encode(), "sha256")
        forged = f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
        assert problem_of(tokens, forged) == TokenProblem.FORGED


def test_a_token_cannot_bring_its_key_or_choose_another(tokens: Tokens, issuer: Issuer) -> None:
    own = ec.generate_private_key(ec.SECP256R1())
    brought = {**ECAlgorithm.to_jwk(own.public_key(), as_dict=True), "kid": "own"}
    for headers in ({"kid": "own", "jwk": brought}, {"kid": "one", "jwk": brought}, {"kid": "one", "jku": "https://x"}):
        assert problem_of(tokens, jwt.encode(issuer.claims(), own, "ES256", headers)) in {
            TokenProblem.UNKNOWN,
            TokenProblem.FORGED,
        }
    assert problem_of(tokens, issuer.token(headers={"kid": "two"})) == TokenProblem.FORGED
    for kid in ("three", "../jwks.json", "' or 1=1", "", None, 1, {"kid": "one"}):
        unknown = f"{part({'alg': 'ES256', 'kid': kid})}.{part(issuer.claims())}.AAAA"
        assert problem_of(tokens, unknown) in {TokenProblem.UNKNOWN, TokenProblem.MALFORMED}
    critical = issuer.token(headers={"crit": ["exp"]})
    assert problem_of(tokens, critical) == TokenProblem.MALFORMED


def test_what_is_no_token_at_all_is_refused(tokens: Tokens, issuer: Issuer) -> None:
    nested = base64.urlsafe_b64encode(b"[" * 3000).rstrip(b"=").decode()
    numbers = base64.urlsafe_b64encode(b'{"kid":' + b"9" * 5000 + b"}").rstrip(b"=").decode()
    for garbage in ("a.b.c", "..", "a.b", "a.b.c.d", f"{nested}.{nested}.AA", f"{numbers}.e30.AA", "é.b.c", "x" * 9000):
        assert problem_of(tokens, garbage) == TokenProblem.MALFORMED
    padded = issuer.token(padding="x" * 8192)
    assert problem_of(tokens, padded) == TokenProblem.MALFORMED
    for payload in (b"[]", b"null", b"7", b"\xff", b'{"iss":'):
        signed = jwt.api_jws.encode(payload, issuer.keys["one"], "ES256", {"kid": "one"})
        assert problem_of(tokens, signed) == TokenProblem.MALFORMED
    assert problem_of(Tokens(), issuer.token()) == TokenProblem.MALFORMED
    assert problem_of(tokens, "smt_abcdefghij_" + "a" * 43) == TokenProblem.UNKNOWN


def test_a_key_that_is_taken_away_ends_what_it_signed(issuer: Issuer) -> None:
    clock = 0.0
    tokens = Tokens(jwks=issuer.jwks, rules=RULES, clock=lambda: clock)
    one, two = issuer.token(), issuer.token("two", "EdDSA")
    assert accepts(tokens, one)
    issuer.publish("two")
    clock += 5
    assert problem_of(tokens, one) == TokenProblem.UNKNOWN
    assert accepts(tokens, two)
    issuer.jwks.write_text("{}")
    clock += 5
    assert accepts(tokens, two), "a file that cannot be used leaves the keys before it"
    assert tokens.failed_reloads == 1


def test_what_was_found_is_kept_until_it_ends_and_bounded(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    now, checked = time.time(), 0
    tokens = Tokens(jwks=issuer.jwks, rules=RULES, now=lambda: now)
    decode = jwt.decode

    def counting(*arguments: Any, **named: Any) -> Any:
        nonlocal checked
        checked += 1
        return decode(*arguments, **named)

    monkeypatch.setattr(jwt, "decode", counting)
    token = issuer.token()
    identity = tokens.identify(token)
    assert tokens.identify(token) is identity
    assert tokens.verify(token).problem() is None
    assert checked == 1
    now += 60 + RULES.leeway_s + 1
    assert problem_of(tokens, token) == TokenProblem.EXPIRED
    monkeypatch.setattr("slotmesh.security.tokens.verifier.KEPT", 2)
    now, checked = time.time(), 0
    for token in [issuer.token(jti=str(index)) for index in range(4)]:
        tokens.identify(token)
    tokens.identify(token)
    tokens.identify(issuer.token(jti="0"))
    assert checked == 5
    assert KEPT == 4096


def test_what_is_kept_is_what_was_shown_last(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotmesh.security.tokens.verifier.KEPT", 2)
    tokens = Tokens(jwks=issuer.jwks, rules=RULES)
    first, second, third = (issuer.token(jti=str(index)) for index in range(3))
    kept = tokens.verify(first)
    tokens.verify(second)
    assert tokens.verify(first) is kept
    tokens.verify(third)
    assert tokens.verify(first) is kept


def test_streams_are_looked_at_without_cryptography(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and after the issuer has rotated its keys."""
    monkeypatch.setattr("slotmesh.security.tokens.verifier.KEPT", 2)
    clock = 0.0
    tokens = Tokens(jwks=issuer.jwks, rules=RULES, clock=lambda: clock)
    held = [tokens.verify(issuer.token(jti=str(index))) for index in range(5)]
    other = tokens.verify(issuer.token("two", "EdDSA"))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("verified again")

    monkeypatch.setattr(jwt, "decode", refuse)
    assert [each.problem() for each in held] == [None] * 5
    issuer.write({"keys": [{**issuer.public("one"), "x5t": "said of the same key"}]})
    clock += 5
    assert [each.problem() for each in held] == [None] * 5
    assert other.problem() == "the token of client/alice holds no longer"
    issuer.write({"keys": [{**issuer.public("one"), "kid": "three"}, {**issuer.public("two"), "kid": "one"}]})
    clock += 5
    assert None not in [each.problem() for each in held], "another key has its id"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("[", "is not JSON; expected a JWKS"),
        ("[" * 100_000, "is not JSON; expected a JWKS"),
        ("{}", 'is no JWKS: expected {"keys": [...]}'),
        ('{"keys": [3]}', "is no JWKS"),
        ('{"keys": []}', "has no key that could be used: it is empty"),
        ({"kid": ""}, "keys[0] has no kid of 1 to 256 characters"),
        ({"kid": None}, "has no kid"),
        ({"use": "enc"}, "is not for signatures"),
        ({"key_ops": ["sign"]}, "is not for signatures"),
        ({"key_ops": 7}, "is not for signatures"),
        ({"alg": "HS256"}, "is for none of the algorithms that are allowed"),
        ({"alg": "none"}, "is for none of the algorithms that are allowed"),
        ({"crv": "secp256k1"}, "is for none of the algorithms that are allowed"),
        ({"crv": ["P-256"]}, "is for none of the algorithms that are allowed"),
        ({"kty": "oct", "k": "AAAA"}, "keys[0]: is a private or shared key"),
        ({"d": "AAAA"}, "keys[0]: is a private or shared key"),
        ({"x": "AAAA"}, "could not be read"),
        ({"x": 7}, "could not be read"),
    ],
)
def test_keys_that_cannot_be_used_are_said(issuer: Issuer, change: str | dict[str, Any], words: str) -> None:
    if isinstance(change, str):
        issuer.jwks.write_text(change)
    else:
        issuer.write({"keys": [{**issuer.public("one"), **change}]})
    with pytest.raises(UnusableFile) as caught:
        Tokens(jwks=issuer.jwks, rules=RULES)
    assert str(caught.value).startswith(f"{issuer.jwks}: ")
    assert words in str(caught.value)


def test_keys_for_other_purposes_are_passed_over(issuer: Issuer) -> None:
    odd = [{}, {"kty": "future", "kid": "x"}, {**issuer.public("two"), "kid": "enc", "use": "enc"}]
    issuer.write({"keys": [*odd, issuer.public("one")], "more": 1})
    assert accepts(Tokens(jwks=issuer.jwks, rules=RULES), issuer.token())
    issuer.write({"keys": [issuer.public("one"), {**issuer.public("two"), "kid": "one"}]})
    with pytest.raises(UnusableFile, match=r"keys\[1\]: kid: is that of an earlier key"):
        Tokens(jwks=issuer.jwks, rules=RULES)


def test_a_key_is_for_the_algorithm_that_it_names(issuer: Issuer) -> None:
    key = rsa.generate_private_key(65537, 2048)
    public = {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "rsa"}
    issuer.keys["rsa"] = key
    issuer.write({"keys": [{**public, "alg": "PS256"}]})
    tokens = Tokens(jwks=issuer.jwks, rules=RULES)
    assert accepts(tokens, issuer.token("rsa", "PS256"))
    assert problem_of(tokens, issuer.token("rsa", "RS256")) == TokenProblem.FORGED
    issuer.write({"keys": [public]})
    tokens = Tokens(jwks=issuer.jwks, rules=RULES)
    assert accepts(tokens, issuer.token("rsa", "RS256"))
    assert problem_of(tokens, issuer.token("rsa", "RS512")) == TokenProblem.FORGED, "not allowed"


def test_a_key_that_is_too_short_is_none(issuer: Issuer) -> None:
    short = rsa.generate_private_key(65537, 1024).public_key()  # noqa: S505 - to be refused
    issuer.write({"keys": [{**RSAAlgorithm.to_jwk(short, as_dict=True), "kid": "short"}]})
    with pytest.raises(UnusableFile, match="has 1024 bits; 2048 to 8192 are needed"):
        Tokens(jwks=issuer.jwks, rules=RULES)


def test_who_could_write_the_keys_could_be_anybody(issuer: Issuer) -> None:
    issuer.jwks.chmod(0o666)
    with pytest.raises(UnusableFile, match="can be written by others on this machine: `chmod go-w "):
        Tokens(jwks=issuer.jwks, rules=RULES)
    issuer.jwks.unlink()
    with pytest.raises(UnusableFile, match="there is no such file of keys"):
        Tokens(jwks=issuer.jwks, rules=RULES)


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "hs512", "ES256K", "rs256", ""])
def test_algorithms_that_cannot_be_allowed(algorithm: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){algorithm}" if algorithm else "is not one of"):
        JwtRules(issuer=ISSUER, audience=AUDIENCE, algorithms=("ES256", algorithm))
