"""Identifies the holders of bearer tokens, of both kinds. The entry point of this package.

Purpose: runs once per rpc, on the event loop: a static token takes a hash and a look-up; verified JWTs are cached, as
verifying a signature takes a hundred times as long. A stream keeps a credential; the check each second whether its
token or key still exists takes no cryptography.
Invariants: files are checked once a second, so that a revoked token is refused within a few seconds. The cache of JWTs
is bounded, has hashes as keys, and is valid while the verifying key is one of the issuer's.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slotmesh.security.identity import Credential, Identity
from slotmesh.security.secret_files import FileGuard, UnusableFile, WatchedFile, read_guarded
from slotmesh.security.tokens.rules import MAX_LENGTH, BadToken, JwtRules, TokenProblem
from slotmesh.security.tokens.static_tokens import PREFIX, BadTokenFile, StaticToken, StaticTokens, parse_tokens

if TYPE_CHECKING:
    from slotmesh.security.tokens.jwt_tokens import IssuerKey

KEPT: Final = 4096
"""The limit of cached JWTs; the least recently used one is dropped."""
_NO_LONGER: Final = "the token of {} holds no longer"


class Tokens:
    """The bearer tokens that a server accepts."""

    def __init__(
        self,
        static: Path | None = None,
        jwks: Path | None = None,
        rules: JwtRules | None = None,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the files. `static`: file of static tokens; `jwks`: keys of an issuer, which requires `rules`.

        `now`: seconds since 1970; `clock`: monotonic seconds.

        Raises:
            UnusableFile: a file cannot be used; the message has its name and the way out.
        """
        self._now = now
        self._static = None if static is None else WatchedFile(static, read_static, now=clock)
        self._issuer = None if jwks is None or rules is None else _Issuer(jwks, rules, clock)
        self.refusals: Counter[TokenProblem] = Counter()
        """The number of refused tokens, by reason."""

    @property
    def failed_reloads(self) -> int:
        """The number of changes after which a file could not be used."""
        files = (self._static, None if self._issuer is None else self._issuer.keys)
        return sum(each.failed_reloads for each in files if each is not None)

    def identify(self, token: str) -> Identity:
        """The identity of the token's holder.

        Raises:
            BadToken: not accepted. Its message may be sent to the caller; its reason is for the log only.
        """
        return self.verify(token).identity

    def verify(self, token: str) -> Credential:
        """A credential that can be checked again without the token.

        Raises:
            BadToken: as above.
        """
        try:
            return self._verify(token)
        except BadToken as error:
            self.refusals[error.problem] += 1
            raise

    def _verify(self, token: str) -> Credential:
        if len(token) > MAX_LENGTH or not token.isascii():
            raise BadToken(TokenProblem.MALFORMED, f"longer than {MAX_LENGTH} characters, or not of ASCII")
        if token.startswith(PREFIX):
            if self._static is None:
                raise BadToken(TokenProblem.UNKNOWN, "static tokens are not accepted here: there is no --tokens")
            return _HeldStaticToken(self._static, self._static.current().find(token, self._now()))
        if self._issuer is None:
            raise BadToken(TokenProblem.MALFORMED, "not of the form of a static token, and no issuer is trusted here")
        return self._issuer.verify(token, self._now())


@dataclass(frozen=True, slots=True)
class _HeldStaticToken:
    """An accepted static token."""

    file: WatchedFile[StaticTokens]
    record: StaticToken

    @property
    def identity(self) -> Identity:
        return self.record.identity

    def problem(self) -> str | None:
        return None if self.file.current().has(self.record) else _NO_LONGER.format(self.identity.name)


@dataclass(frozen=True, slots=True)
class _HeldJwt:
    """An accepted JWT, valid while the key that verified it is one of the issuer's."""

    identity: Identity
    file: WatchedFile[Mapping[str, IssuerKey]]
    kid: str
    key: IssuerKey

    def problem(self) -> str | None:
        is_there = self.key.is_same_as(self.file.current().get(self.kid))
        return None if is_there else _NO_LONGER.format(self.identity.name)


class _Issuer:
    """One issuer of JWTs, with a cache of verified tokens."""

    def __init__(self, jwks: Path, rules: JwtRules, clock: Callable[[], float]) -> None:
        from slotmesh.security.tokens.jwt_tokens import identify_jwt  # noqa: PLC0415 - imports `cryptography`

        self._check = partial(identify_jwt, rules=rules)
        self.keys = WatchedFile(jwks, partial(read_keys, algorithms=rules.algorithms), now=clock)
        self._found: OrderedDict[bytes, _HeldJwt] = OrderedDict()
        """By the hash of the token, the most recently used one last."""
        self._changing = threading.Lock()
        """Guards `_found`: metrics pages read it in other threads."""

    def verify(self, token: str, now: float) -> _HeldJwt:
        """Raises BadToken."""
        digest = sha256(token.encode()).digest()
        with self._changing:
            held = self._found.get(digest)
            if held is not None:
                self._found.move_to_end(digest)
        if held is None or held.problem() is not None:
            held = self._verified(token, digest)
        if held.identity.expires_at is not None and now >= held.identity.expires_at:
            raise BadToken(TokenProblem.EXPIRED, f"a JWT of {held.identity.name} has expired")
        return held

    def _verified(self, token: str, digest: bytes) -> _HeldJwt:
        """Raises BadToken."""
        keys = self.keys.current()
        identity, kid = self._check(token, keys)
        held = _HeldJwt(identity, self.keys, kid, keys[kid])
        with self._changing:
            if digest not in self._found and len(self._found) >= KEPT:
                self._found.popitem(last=False)
            self._found[digest] = held
        return held


def read_static(path: Path, *, of_any_owner: bool = False) -> StaticTokens:
    """The static tokens of a file. `of_any_owner`: for display or changes, not for authentication.

    Raises:
        UnusableFile: it cannot be used.
    """
    try:
        return parse_tokens(
            read_guarded(path, "file of tokens (--tokens)", FileGuard.SECRET, of_any_owner=of_any_owner)
        )
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
    from slotmesh.security.tokens.jwt_tokens import BadKeySet, parse_keys  # noqa: PLC0415 - imports `cryptography`

    try:
        return parse_keys(read_guarded(path, "file of keys (--jwt-jwks)", FileGuard.PUBLIC), algorithms)
    except FileNotFoundError:
        raise UnusableFile(
            f"{path}: there is no such file of keys (--jwt-jwks): save the issuer's JWKS there"
        ) from None
    except BadKeySet as error:
        raise UnusableFile(f"{path}: {error}") from None
