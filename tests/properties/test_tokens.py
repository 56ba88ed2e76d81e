"""Tokens: whatever bytes arrive as a token or as a file, and any order of creating, revoking and waiting."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slotmesh.security.identity import Identity
from slotmesh.security.tokens import BadToken, Tokens
from slotmesh.security.tokens.jwt_tokens import BadKeySet, parse_keys
from slotmesh.security.tokens.rules import DEFAULT_ALGORITHMS, REFUSAL, roles_of
from slotmesh.security.tokens.static_tokens import BadTokenFile, StaticTokens, new_secret, parse_tokens, write_tokens
from slotmesh.security.tokens.token_file import REMEMBERED_S, with_created, with_revoked
from tests.support.examples import examples
from tests.support.issuers import RULES, Issuer
from tests.support.token_files import accepts, created

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
FIELDS = ("id", "identity", "roles", "endpoints", "created", "expires", "revoked", "sha256", "more")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokens, list[str]]:
    """Tokens of both kinds, and one of each."""
    directory = tmp_path_factory.mktemp("tokens")
    issuer, path = Issuer(directory), directory / "tokens.json"
    secret = created(path, for_s=3600)
    return Tokens(path, issuer.jwks, RULES), [secret, issuer.token(exp=4_000_000_000)]


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")) | st.from_regex(r"smt_[a-z0-9]*_\w*"))
@example("\ud800")
@example("smt_\x00")
def test_anything_but_a_token_is_refused(served: tuple[Tokens, list[str]], token: str) -> None:
    with pytest.raises(BadToken, match=REFUSAL):
        served[0].identify(token)


@given(st.integers(0, 1), st.data())
def test_a_token_with_a_change_is_refused(served: tuple[Tokens, list[str]], kind: int, data: st.DataObject) -> None:
    tokens, both = served
    token = both[kind]
    at = data.draw(st.integers(0, len(token) - 1))
    changed = token[:at] + data.draw(st.text(max_size=2)) + token[at + 1 :]
    # The last character of a signature has bits that count for nothing.
    if changed[:-1] != token[:-1] or kind == 0:
        assert accepts(tokens, changed) is (changed == token)


@given(st.binary() | JSON.map(lambda it: json.dumps(it).encode()))
def test_anything_but_a_file_of_tokens_is_said_so(content: bytes) -> None:
    with pytest.raises(BadTokenFile):
        parse_tokens(content)
    with pytest.raises(BadKeySet):
        parse_keys(content, DEFAULT_ALGORITHMS)


@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON | st.just(["invoker"]) | st.just("client/a"))))
def test_entries_that_are_almost_tokens_are_refused_or_read(entries: list[dict[str, object]]) -> None:
    content = json.dumps({"version": 1, "tokens": entries}).encode()
    try:
        read = len(parse_tokens(content).tokens)
    except BadTokenFile as error:
        named = str(error)
        read = len(entries) if "tokens[" in named or "is no value of JSON" in named else -1
    assert read == len(entries)


@given(
    st.dictionaries(
        st.sampled_from(("kty", "kid", "crv", "x", "y", "n", "e", "alg", "use", "key_ops")),
        JSON | st.sampled_from(("EC", "RSA", "OKP", "P-256", "Ed25519", "AQAB", "A" * 43)),
    )
)
def test_keys_that_are_almost_keys_are_refused_or_read(key: dict[str, object]) -> None:
    with suppress(BadKeySet):
        assert set(parse_keys(json.dumps({"keys": [key]}).encode(), DEFAULT_ALGORITHMS)) == {key["kid"]}


class Files(RuleBasedStateMachine):
    """A file of tokens against a naive model: a token holds from when it is made until it ends or is revoked."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_700_000_000.0
        self.file = write_tokens(())
        self.made: dict[str, tuple[Identity, bool]] = {}
        """Who holds each token that was ever made, and whether it was revoked."""

    @rule(kind=st.sampled_from(("client", "viewer", "operator")), for_s=st.none() | st.integers(1, 10**7))
    def create(self, kind: str, for_s: int | None) -> None:
        token, token_id = new_secret()
        ends = None if for_s is None else float(int(self.now + for_s))
        identity = Identity(name=f"{kind}/n{len(self.made)}", roles=roles_of(kind), expires_at=ends)
        self.change(with_created(parse_tokens(self.file), token, token_id, identity, self.now))
        self.made[token] = (identity, False)

    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        known = {each.id for each in parse_tokens(self.file).tokens}
        there = [token for token in self.made if token.split("_")[1] in known]
        if not there:
            return
        chosen = data.draw(st.sets(st.sampled_from(there), max_size=2))
        self.change(with_revoked(parse_tokens(self.file), [each.split("_")[1] for each in chosen], self.now))
        for token in chosen:
            self.made[token] = (self.made[token][0], True)

    @rule(seconds=st.integers(0, 10**6) | st.just(REMEMBERED_S))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    def change(self, tokens: StaticTokens) -> None:
        self.file = write_tokens(tokens.tokens)
        assert parse_tokens(self.file) == tokens

    @invariant()
    def holds_what_should(self) -> None:
        tokens = parse_tokens(self.file)
        for token, (identity, is_revoked) in self.made.items():
            ended = identity.expires_at is not None and self.now >= identity.expires_at
            try:
                found = tokens.find(token, self.now).identity
            except BadToken:
                assert is_revoked or ended
            else:
                assert found == identity
                assert not is_revoked
                assert not ended
        kept = {each.id for each in tokens.tokens}
        assert all(
            token.split("_")[1] in kept for token, (it, gone) in self.made.items() if not gone and not it.expires_at
        )


TestFiles = Files.TestCase
TestFiles.settings = settings(max_examples=examples(40), stateful_step_count=20, deadline=None)
