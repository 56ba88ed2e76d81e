"""The way in: who the holder of a bearer token is, whichever kind of token it is.

Purpose: asked once for each rpc, and once a second for each stream that is open, on the event loop: static tokens are
a hash and a look-up, and what was found of a JWT is kept, as its signature takes a hundred times as long.
Invariants: files are looked at once a second, so that a token that was revoked is refused a few seconds later; what is
kept is bounded, is kept by hash, and goes when the issuer's keys change.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slotmesh.security.identity import Identity
from slotmesh.security.secret_files import FileGuard, UnusableFile, read_guarded
from slotmesh.security.tokens.document import BadTokenFile, parse_tokens
from slotmesh.security.tokens.failures import BadToken, TokenProblem
from slotmesh.security.tokens.jwt_rules import MAX_LENGTH, JwtRules
from slotmesh.security.tokens.static_tokens import PREFIX, StaticTokens
from slotmesh.security.watched_files import WatchedFile

if TYPE_CHECKING:
    from slotmesh.security.tokens.key_set import IssuerKey

KEPT: Final = 4096
"""Of so many JWT it is kept who holds them."""


class Tokens:
    """Bearer tokens that a server accepts."""

    def __init__(
        self,
        static: Path | None = None,
        jwks: Path | None = None,
        rules: JwtRules | None = None,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the files. `static` has static tokens; `jwks` the keys of an issuer, which needs `rules`.

        `now`: seconds since 1970; `clock`: seconds since any moment.

        Raises:
            UnusableFile: one of them cannot be used; the message names it, and the way out.
        """
        self._now = now
        self._static = None if static is None else WatchedFile(static, read_static, now=clock)
        self._issuer = None if jwks is None or rules is None else _Issuer(jwks, rules, clock)
        self.refusals: Counter[TokenProblem] = Counter()
        """Tokens that were not accepted."""

    @property
    def failed_reloads(self) -> int:
        """Changes of the files after which they could not be used."""
        files = (self._static, None if self._issuer is None else self._issuer.keys)
        return sum(each.failed_reloads for each in files if each is not None)

    def identify(self, token: str) -> Identity:
        """Who holds the token.

        Raises:
            BadToken: nobody who is known. Its message is for anybody, its reason for the log only.
        """
        try:
            return self._identify(token)
        except BadToken as error:
            self.refusals[error.problem] += 1
            raise

    def still_holds(self, token: str, identity: Identity | None = None) -> bool:
        """Whether the token is accepted now, and gives what it gave: that identity, where one is given."""
        try:
            found = self._identify(token)
        except BadToken:
            return False
        return identity is None or found == identity

    def _identify(self, token: str) -> Identity:
        if len(token) > MAX_LENGTH or not token.isascii():
            raise BadToken(TokenProblem.MALFORMED, f"longer than {MAX_LENGTH} characters, or not of ASCII")
        if token.startswith(PREFIX):
            if self._static is None:
                raise BadToken(TokenProblem.UNKNOWN, "static tokens are not accepted here: there is no --tokens")
            return self._static.current().identify(token, self._now())
        if self._issuer is None:
            raise BadToken(TokenProblem.MALFORMED, "not of the form of a static token, and no issuer is trusted here")
        return self._issuer.identify(token, self._now())


class _Issuer:
    """One issuer of JWT, and what was found of those of late."""

    def __init__(self, jwks: Path, rules: JwtRules, clock: Callable[[], float]) -> None:
        from slotmesh.security.tokens.jwt_tokens import identify_jwt  # noqa: PLC0415 - imports `cryptography`

        self._check = partial(identify_jwt, rules=rules)
        self.keys = WatchedFile(jwks, partial(read_keys, algorithms=rules.algorithms), now=clock)
        self._of = self.keys.current()
        self._found: dict[bytes, Identity] = {}
        """By the hash of a token, oldest first."""
        self._changing = threading.Lock()
        """Of what was found: the pages of metrics ask in threads of their own."""

    def identify(self, token: str, now: float) -> Identity:
        """Raises BadToken."""
        keys, digest = self.keys.current(), sha256(token.encode()).digest()
        identity = self._found.get(digest) if keys is self._of else None
        if identity is None:
            identity = self._check(token, keys)
            self._keep(digest, identity, keys)
        if identity.expires_at is not None and now >= identity.expires_at:
            raise BadToken(TokenProblem.EXPIRED, f"a JWT of {identity.name} has expired")
        return identity

    def _keep(self, digest: bytes, identity: Identity, keys: Mapping[str, IssuerKey]) -> None:
        with self._changing:
            if keys is not self._of:
                # In this order: nobody finds by the new keys what was found by the old ones.
                self._found = {}
                self._of = keys
            elif len(self._found) >= KEPT:
                del self._found[next(iter(self._found))]
            self._found[digest] = identity


def read_static(path: Path) -> StaticTokens:
    """The static tokens of a file.

    Raises:
        UnusableFile: it cannot be used.
    """
    try:
        return parse_tokens(read_guarded(path, "file of tokens (--tokens)", FileGuard.SECRET))
    except FileNotFoundError:
        raise UnusableFile(
            f"{path}: there is no such file of tokens (--tokens); `slotmesh token create NAME --file {path}` makes it"
        ) from None
    except BadTokenFile as error:
        raise UnusableFile(f"{path}: {error}") from None


def read_keys(path: Path, algorithms: tuple[str, ...]) -> Mapping[str, IssuerKey]:
    """The keys of an issuer's file.

    Raises:
        UnusableFile: it cannot be used.
    """
    from slotmesh.security.tokens.key_set import BadKeySet, parse_keys  # noqa: PLC0415 - imports `cryptography`

    try:
        return parse_keys(read_guarded(path, "file of keys (--jwt-jwks)", FileGuard.PUBLIC), algorithms)
    except FileNotFoundError:
        raise UnusableFile(
            f"{path}: there is no such file of keys (--jwt-jwks): save the issuer's JWKS there"
        ) from None
    except BadKeySet as error:
        raise UnusableFile(f"{path}: {error}") from None
