"""The bytes of files that decide who may do what: bounded, of plain files only, guarded against others.

Others are all but root and the user of the process: they own no such file, and can do with it what `FileGuard` says.

Invariants: what is checked is what is read: both by one descriptor. No message has anything of what a file holds.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

from slotmesh.logs import get_logger

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


# A thread of its own that has files looked at once a second, whether or not anybody asks for what they hold.
#
# Purpose: who asks after a long silence must neither get what was there before it, nor wait for a disk and a parser.
# Invariants: one thread, which ends with its owner. It keeps nobody alive.
# Owner: who decides by the files. Any thread may call it.

LOOK_S: Final = 1.0
"""How often files are looked at, at most, seconds."""


class FileWatch:
    """Calls one method, time and again."""

    def __init__(self, look: Callable[[], object], name: str) -> None:
        """`look` is a bound method of the owner. `name`: of the thread."""
        self._look = weakref.WeakMethod(look)
        self._name = name
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def ensure(self) -> None:
        """From now on the thread is there. Quick."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=_watch, args=(self._look, _end_of(self._look)), name=self._name)
                thread.daemon = True
                with suppress(RuntimeError):  # the process ends
                    thread.start()
                self._thread = thread


def _end_of(look: weakref.WeakMethod[Callable[[], object]]) -> threading.Event:
    """Set when the owner of the method is there no more."""
    ended = threading.Event()
    if (method := look()) is None:
        ended.set()
    else:
        weakref.finalize(method.__self__, ended.set).atexit = False  # type: ignore[attr-defined]  # it is bound
    return ended


def _watch(look: weakref.WeakMethod[Callable[[], object]], ended: threading.Event) -> None:
    while not ended.wait(LOOK_S):
        if (method := look()) is None:
            return
        method()
        del method


# A file that is read again while the process runs.
#
# Invariants: a file that cannot be used never takes the place of one that could, and each such problem is logged and
# counted once. Whoever asks gets what was in the file a few seconds ago, at the most, after a long silence as well; no
# event loop waits for a disk or a parser: a thread looks, from the first question on. Only that first one may wait, and
# those to a process so busy that its threads do not run.
# Owner: who decides by the file. Any thread may ask.

STALE_S: Final = 3.0
"""Where the thread has not looked for so long, whoever asks looks at once and waits for it, seconds."""
_SETTLED_S: Final = 2.0
"""A file that has changed this recently may change again without that its times tell: it is read anew."""

ContentT = TypeVar("ContentT")

_log = get_logger(__name__)


class WatchedFile(Generic[ContentT]):
    """What one file holds."""

    def __init__(
        self, path: Path, read: Callable[[Path], ContentT], *, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Reads the file. `read` gives what it holds, or raises UnusableFile. `now`: seconds since any moment.

        Raises:
            UnusableFile: it cannot be used.
        """
        self.path = path
        self._read = read
        self._now = now
        self._looking = threading.Lock()
        """Held by the thread that looks. It guards what follows, but for reading."""
        self._watch = FileWatch(self.look, f"look at {path.name}")
        self._stamp = _settled_stamp(path)
        self._content = read(path)
        self._looked_at = now()
        self._problem = ""
        self.version = 1
        """Counts the contents that were read."""
        self.failed_reloads = 0
        """Changes of the file after which it could not be used."""

    def current(self) -> ContentT:
        """The newest content that could be used. From the first time on a thread looks at the file once a second."""
        self._watch.ensure()
        if self._now() - self._looked_at >= STALE_S and not self._looking.locked():
            return self.look()
        return self._content

    def look(self) -> ContentT:
        """The newest content that can be used. Looks at the file, at most once a second; waits for the disk."""
        with self._looking:
            if self._now() - self._looked_at >= LOOK_S:
                try:
                    self._reload()
                finally:
                    self._looked_at = self._now()
            return self._content

    def _reload(self) -> None:
        found = _settled_stamp(self.path)
        if found is not None and found == self._stamp:
            return
        try:
            content = self._read(self.path)
        except UnusableFile as error:
            self._stamp = None
            if str(error) != self._problem:
                self._problem = str(error)
                self.failed_reloads += 1
                _log.warning("a file cannot be read again; what it held before stays", why=self._problem)
            return
        # The stamp of before the reading: what has changed meanwhile is read again.
        self._stamp, self._problem = found, ""
        if content != self._content:
            self._content = content
            self.version += 1
            _log.info("a file was read again", file=str(self.path), version=self.version)


def _settled_stamp(path: Path) -> FileStamp | None:
    """The stamp of a file; None where it could change without another one, or is not there."""
    try:
        found = stamp(path)
    except OSError:
        return None
    return None if abs(time.time() - found[2] / 1e9) < _SETTLED_S else found
