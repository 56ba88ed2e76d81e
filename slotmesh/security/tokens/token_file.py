"""Changes of the file of static tokens: create, revoke, and drop after a while.

Invariants: the file is replaced atomically; of concurrent commands, one waits for the other. Only the owner can read
the file. Revoked and expired tokens stay listed for `REMEMBERED_S`; dropping them changes no decision, as unknown
tokens
are refused as well.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from slotmesh.security.identity import Identity
from slotmesh.security.secret_files import UnusableFile
from slotmesh.security.tokens.static_tokens import MAX_TOKENS, StaticToken, StaticTokens, digest_of, write_tokens
from slotmesh.security.tokens.verifier import read_static

REMEMBERED_S: Final = 30 * 86_400
"""How long tokens that have expired or were revoked stay in the file."""


class NoSuchChange(ValueError):
    """The file of tokens cannot be changed this way; the message has the reason."""


def state_of(token: StaticToken, now: float) -> str:
    """`valid`, `revoked` or `expired`."""
    if token.revoked_at is not None:
        return "revoked"
    expires_at = token.identity.expires_at
    return "expired" if expires_at is not None and now >= expires_at else "valid"


def with_created(tokens: StaticTokens, token: str, token_id: str, identity: Identity, now: float) -> StaticTokens:
    """The tokens with one more.

    Raises:
        NoSuchChange: the file is full.
    """
    kept = _remembered(tokens, now)
    if len(kept) >= MAX_TOKENS:
        raise NoSuchChange(
            f"has {MAX_TOKENS:,} tokens already, which is the bound: use another file, or JWT of an issuer"
        )
    new = StaticToken(id=token_id, identity=identity, digest=digest_of(token), created_at=float(int(now)))
    return StaticTokens((*kept, new))


def with_revoked(tokens: StaticTokens, ids: Collection[str], now: float) -> StaticTokens:
    """The same tokens, with these revoked; tokens that were revoked before keep their time.

    Raises:
        NoSuchChange: one of them does not exist.
    """
    known = {each.id for each in tokens.tokens}
    if missing := [each for each in ids if each not in known]:
        raise NoSuchChange(
            f"there is no token {missing[0]}, nothing was revoked; `slotmesh token list` shows those there are"
        )
    revoked = tuple(
        replace(each, revoked_at=float(int(now))) if each.id in ids and each.revoked_at is None else each
        for each in tokens.tokens
    )
    return StaticTokens(_remembered(StaticTokens(revoked), now))


def _remembered(tokens: StaticTokens, now: float) -> tuple[StaticToken, ...]:
    return tuple(each for each in tokens.tokens if now - _ended_at(each, now) <= REMEMBERED_S)


def _ended_at(token: StaticToken, now: float) -> float:
    """When a token was revoked or expired; `now` if it is valid."""
    ends = [at for at in (token.revoked_at, token.identity.expires_at) if at is not None]
    return min(now, *ends) if ends else now


LOCK_S: Final = 10.0
"""How long to wait for a concurrent command, in seconds."""
_RETRY_S: Final = 0.02


def change_tokens(path: Path, change: Callable[[StaticTokens], StaticTokens], *, create: bool = False) -> None:
    """Replaces the content of the file. `create`: a missing file is created.

    Raises:
        UnusableFile: it cannot be read or written.
    """
    # Follows a symbolic link, so that its target is replaced, and not the link.
    path = Path(os.path.realpath(path))
    try:
        with _locked(path):
            missing = create and not path.exists()
            changed = change(StaticTokens() if missing else read_static(path, of_any_owner=True))
            _replace(path, write_tokens(changed.tokens))
    except OSError as error:
        raise UnusableFile(f"{path}: the file of tokens cannot be written: {error.strerror or error}") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Raises OSError; UnusableFile if another command holds the lock for too long."""
    # A separate file, as each change replaces the other one. It is kept: waiting commands have it open.
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() >= deadline:
                raise UnusableFile(
                    f"{path}: another command changes it for more than {LOCK_S:.0f} s: see who has {lock} open"
                )
            time.sleep(_RETRY_S)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    """Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()  # left by a command that was killed
    owner = path.stat() if path.exists() else None
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if owner is not None:
            # Keeps owner and group: a file of root that its group reads stays readable.
            if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            os.fchmod(descriptor, owner.st_mode & 0o7777)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
