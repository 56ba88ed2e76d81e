"""The bytes of files that decide who may do what: bounded, of plain files only, guarded against others.

Others are all but root and the user of the process: they own no such file, and can do with it what `FileGuard` says.

Invariants: what is checked is what is read: both by one descriptor. No message has anything of what a file holds.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

MAX_BYTES: Final = 1024 * 1024
"""Of a file."""

_BLOCK: Final = re.compile(rb"-----BEGIN (?P<kind>[A-Z0-9 ]+)-----.*?-----END (?P=kind)-----", re.DOTALL)

FileStamp: TypeAlias = tuple[int, int, int, int, int, int, int]


class UnusableFile(Exception):
    """A file that cannot be used; the message names it, and the way out."""


class FileGuard(Enum):
    """What others on the machine may do with a file."""

    SECRET = 0o077
    """Nothing."""
    PUBLIC = 0o022
    """Read it: who could write it could become anybody."""


_SECRET_OF_ROOT: Final = 0o037
"""Its group may read a file of root: that is how Kubernetes (`fsGroup`) and packages of the system hand secrets to a
process that is not root. The owner of any other file can take the group's right away."""


def stamp(path: Path) -> FileStamp:
    """Differs whenever the file does, or who may read it. Follows symbolic links. Raises OSError."""
    found = path.stat()
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return (found.st_dev, found.st_ino, *times, found.st_size, found.st_mode, found.st_uid)


def read_guarded(path: Path, what: str, guard: FileGuard, *, of_any_owner: bool = False) -> bytes:
    """What the file holds. `what` is what messages call it. `of_any_owner`: nothing is decided by it here.

    Raises:
        FileNotFoundError: there is none.
        UnusableFile: it cannot be read, is no plain file, is too large, or others can do too much with it.
    """
    try:
        # Without blocking: the other end of a named pipe may never come.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise UnusableFile(f"{path}: the {what} has to be a plain file")
            if problem := (None if of_any_owner else owner_problem(path, found)) or mode_problem(path, found, guard):
                raise UnusableFile(f"{path}: the {what} {problem}")
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnusableFile(f"{path}: the {what} cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise UnusableFile(f"{path}: the {what} is larger than {MAX_BYTES // 1024} KiB, which is the bound")
    return content


def pem_blocks(content: bytes) -> bytes:
    """The PEM blocks of a file: readers differ in what they take around them (comments, a byte order mark, UTF-16).

    The content as it is if it has no block.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        content = content.decode("utf-16", "replace").encode()
    return (
        b"".join(b"%b\n" % block.replace(b"\r", b"") for block in (found[0] for found in _BLOCK.finditer(content)))
        or content
    )


def authorities_in(path: Path) -> str:
    """The certificates of a file that is not guarded, for a check of others' certificates. Raises OSError."""
    return pem_blocks(path.read_bytes()).decode("ascii", "replace")


def owner_problem(path: Path, found: os.stat_result) -> str | None:
    """Why another user decides what is in a file, and the way out; None where only this one and root do.

    The owner of a file can always change it, and its mode.
    """
    if found.st_uid in (0, os.geteuid()):
        return None
    return (
        f"belongs to another user of this machine (uid {found.st_uid}), who can change it; files of root and of the "
        f"user that reads them (uid {os.geteuid()}) are used: `chown {os.geteuid()} {path}`"
    )


def mode_problem(path: Path, found: os.stat_result, guard: FileGuard) -> str | None:
    """Why others can do too much with a file, and the way out; None where they cannot."""
    if guard is FileGuard.PUBLIC:
        return f"can be written by others on this machine: `chmod go-w {path}`" if found.st_mode & guard.value else None
    forbidden = _SECRET_OF_ROOT if found.st_uid == 0 else guard.value
    return (
        f"can be read or written by others on this machine: `chmod 600 {path}`" if found.st_mode & forbidden else None
    )
