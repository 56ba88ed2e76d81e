"""Static tokens, and the file of their hashes. Pure, except for the random secret of a new token.

A token is `smt_ID_SECRET`: a prefix that secret scanners recognise (`smt_[a-z0-9]{10}_[A-Za-z0-9]{43}`), an id that may
be shown, and 256 random bits. Only the SHA-256 of the whole token is stored; with that much entropy a slow hash has no
benefit. The file is strict JSON with a version.
Invariants: unknown content is refused, with the entry and the field; written files are read back unchanged. No message
contains a hash.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

from slotmesh.names import did_you_mean
from slotmesh.security.identity import Identity, Role
from slotmesh.security.tokens.rules import BadToken, TokenProblem, roles_of
from slotmesh.spec.rules import is_name

PREFIX: Final = "smt_"
FORM: Final = re.compile(r"smt_([a-z0-9]{10})_[A-Za-z0-9]{43}", re.ASCII)
ID_FORM: Final = re.compile(r"[a-z0-9]{10}", re.ASCII)
_ID_LETTERS: Final = string.ascii_lowercase + string.digits
_SECRET_LETTERS: Final = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticToken:
    """A stored token."""

    id: str
    identity: Identity
    """The holder, with the time of expiry."""
    digest: bytes = field(repr=False)
    """SHA-256 of the token."""
    created_at: float
    """In seconds since 1970, like all times here."""
    revoked_at: float | None = None


def new_secret() -> tuple[str, str]:
    """A new token, and its id."""
    token_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(10))
    return f"{PREFIX}{token_id}_{''.join(secrets.choice(_SECRET_LETTERS) for _ in range(43))}", token_id


def digest_of(token: str) -> bytes:
    """The stored form of a token."""
    return sha256(token.encode()).digest()


@dataclass(frozen=True)
class StaticTokens:
    """The tokens of one file."""

    tokens: tuple[StaticToken, ...] = ()

    @cached_property
    def _by_digest(self) -> dict[bytes, StaticToken]:
        return {each.digest: each for each in self.tokens}

    def find(self, token: str, now: float) -> StaticToken:
        """The stored form of a valid token. `now`: seconds since 1970.

        Raises:
            BadToken: the token is not accepted.
        """
        if not FORM.fullmatch(token):
            raise BadToken(TokenProblem.MALFORMED, "not of the form of a static token")
        digest = digest_of(token)
        # The look-up by hash leaks nothing by its timing: a client cannot choose the hash.
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found.digest, digest):
            raise BadToken(TokenProblem.UNKNOWN, "no such static token")
        if found.revoked_at is not None:
            raise BadToken(TokenProblem.REVOKED, f"the token {found.id} of {found.identity.name} is revoked")
        if found.identity.expires_at is not None and now >= found.identity.expires_at:
            raise BadToken(TokenProblem.EXPIRED, f"the token {found.id} of {found.identity.name} has expired")
        return found

    def has(self, accepted: StaticToken) -> bool:
        """Whether the file still has an accepted token with the same rights, whatever its expiry."""
        found = self._by_digest.get(accepted.digest)
        return found is accepted or (
            found is not None and found.revoked_at is None and found.identity == accepted.identity
        )


VERSION: Final = 1
MAX_TOKENS: Final = 2_000
MAX_ENDPOINTS: Final = 100
"""The limit of endpoints of one token."""

_REQUIRED: Final = ("id", "identity", "roles", "created", "expires", "sha256")
_FIELDS: Final = (*_REQUIRED, "endpoints", "revoked")
_NAME: Final = re.compile(r"(client|viewer|operator)/([A-Za-z0-9][A-Za-z0-9_.-]{0,62})", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


class BadTokenFile(ValueError):
    """An invalid file of tokens; the message names the entry and what is expected."""


def parse_tokens(content: bytes) -> StaticTokens:
    """Parses a file of tokens.

    Raises:
        BadTokenFile: it is invalid.
    """
    try:
        document = json.loads(content.decode(), object_pairs_hook=_object, parse_constant=_no_constant)
    except BadTokenFile:
        raise
    except (ValueError, RecursionError) as error:
        at = f" (line {error.lineno}: {error.msg})" if isinstance(error, json.JSONDecodeError) else ""
        raise BadTokenFile(f"is not JSON{at}; `slotmesh token create` makes such files") from None
    if not isinstance(document, dict) or document.get("version") != VERSION or document["version"] is True:
        raise BadTokenFile(f'expected "version": {VERSION} in an object; another version of slotmesh may have made it')
    if unknown := sorted(document.keys() - {"version", "tokens"}):
        raise BadTokenFile(f"{unknown[0]!r:.80}: no such field; there are version and tokens")
    entries = document.get("tokens")
    if not isinstance(entries, list) or len(entries) > MAX_TOKENS:
        raise BadTokenFile(f"tokens: expected a list of at most {MAX_TOKENS:,} tokens")
    tokens = [_token(_place(index, entry), entry) for index, entry in enumerate(entries)]
    for name, values in (("id", [each.id for each in tokens]), ("sha256", [each.digest.hex() for each in tokens])):
        if len(set(values)) < len(values):
            index = next(index for index, value in enumerate(values) if value in values[:index])
            raise BadTokenFile(f"{_place(index, entries[index])}: {name}: is that of an earlier token, too")
    return StaticTokens(tuple(tokens))


def write_tokens(tokens: Iterable[StaticToken]) -> bytes:
    """The content of a file with these tokens."""
    document = {"version": VERSION, "tokens": [{**shown(each), "sha256": each.digest.hex()} for each in tokens]}
    return (json.dumps(document, indent=2) + "\n").encode()


def shown(token: StaticToken) -> dict[str, Any]:
    """A token for display, without its hash."""
    identity = token.identity
    fields: dict[str, Any] = {"id": token.id, "identity": identity.name, "roles": sorted(identity.roles)}
    if identity.endpoints is not None:
        fields["endpoints"] = sorted(identity.endpoints)
    fields |= {"created": time_text(token.created_at), "expires": None}
    if identity.expires_at is not None:
        fields["expires"] = time_text(identity.expires_at)
    if token.revoked_at is not None:
        fields["revoked"] = time_text(token.revoked_at)
    return fields


def time_text(at: float) -> str:
    """A time in the file's format, to the second."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadTokenFile(f"{twice!r:.80}: is there twice in one object")
    return found


def _no_constant(text: str) -> None:
    raise BadTokenFile(f"{text} is no value of JSON")


def _place(index: int, entry: object) -> str:
    token_id = entry.get("id") if isinstance(entry, dict) else None
    known = isinstance(token_id, str) and ID_FORM.fullmatch(token_id)
    return f"tokens[{index}] ({token_id})" if known else f"tokens[{index}]"


def _token(place: str, entry: object) -> StaticToken:
    if not isinstance(entry, dict):
        raise BadTokenFile(f"{place}: expected an object with {', '.join(_REQUIRED)}")
    for name in entry:
        if name not in _FIELDS:
            raise BadTokenFile(f"{place}: {name!r:.80}: no such field{did_you_mean(name[:80], _FIELDS)}")
    for name in _REQUIRED:
        if name not in entry:
            raise BadTokenFile(f"{place}: {name}: is missing")
    name, roles = (
        _text(place, entry, "identity", _NAME, "client/NAME, viewer/NAME or operator/NAME"),
        _roles(place, entry),
    )
    kind = name.partition("/")[0]
    if excess := sorted(roles - roles_of(kind)):
        raise BadTokenFile(
            f"{place}: roles: {name} cannot be {excess[0]}; a {kind} is {', '.join(sorted(roles_of(kind)))}"
        )
    expires_at = None if entry["expires"] is None else _time(place, entry, "expires")
    return StaticToken(
        id=_text(place, entry, "id", ID_FORM, "10 of a-z and 0-9"),
        digest=bytes.fromhex(_text(place, entry, "sha256", _SHA256, "64 hexadecimal digits in lower case")),
        identity=Identity(name=name, roles=roles, endpoints=_endpoints(place, entry), expires_at=expires_at),
        created_at=_time(place, entry, "created"),
        revoked_at=_time(place, entry, "revoked") if "revoked" in entry else None,
    )


def _text(place: str, entry: Mapping[str, Any], name: str, form: re.Pattern[str], expected: str) -> str:
    value = entry[name]
    if not isinstance(value, str) or not form.fullmatch(value):
        raise BadTokenFile(f"{place}: {name}: expected {expected}")
    return value


def _time(place: str, entry: Mapping[str, Any], name: str) -> float:
    text = _text(place, entry, name, _TIME, "a time such as 2030-01-31T12:00:00Z")
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadTokenFile(f"{place}: {name}: there is no such time") from None


def _roles(place: str, entry: Mapping[str, Any]) -> frozenset[Role]:
    roles = entry["roles"]
    known = {role.value for role in (Role.VIEWER, Role.INVOKER, Role.OPERATOR)}
    if not isinstance(roles, list) or not roles or not all(isinstance(each, str) and each in known for each in roles):
        raise BadTokenFile(f"{place}: roles: expected a list of {', '.join(sorted(known))}; members use certificates")
    return frozenset(Role(each) for each in roles)


def _endpoints(place: str, entry: Mapping[str, Any]) -> frozenset[str] | None:
    if "endpoints" not in entry:
        return None
    names = entry["endpoints"]
    if not is_list_of_endpoints(names):
        raise BadTokenFile(
            f"{place}: endpoints: expected a list of 1 to {MAX_ENDPOINTS} names; leave it out where all are meant"
        )
    return frozenset(names)


def is_list_of_endpoints(names: object) -> bool:
    """Whether this is a valid list of endpoints of a token."""
    return (
        isinstance(names, list)
        and 0 < len(names) <= MAX_ENDPOINTS
        and all(isinstance(each, str) and is_name(each) for each in names)
    )
