"""Files that decide authorisation: read with bounds and checks of their permissions, and reloaded when they change.

"Others" are all users but root and the user of the process: they may not own such a file, and `FileGuard` limits what
they may do with it.

Invariants: the checks and the read use one descriptor. Messages contain nothing of a file's content. A reload that
fails keeps the previous content, and is logged and counted once per problem. Content is at most a few seconds old, also
after a long pause: a thread checks the file once a second from the first use on, so that no event loop waits for a disk
or a parser. Only the first reader may wait, or readers in a process so busy that its threads do not run.
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
"""The size limit of a file."""

_BLOCK: Final = re.compile(rb"-----BEGIN (?P<kind>[A-Z0-9 ]+)-----.*?-----END (?P=kind)-----", re.DOTALL)

FileStamp: TypeAlias = tuple[int, int, int, int, int, int, int]


class UnusableFile(Exception):
    """An unusable file; the message has its name and the way out."""


class FileGuard(Enum):
    """What others may do with a file."""

    SECRET = 0o077
    """Nothing."""
    PUBLIC = 0o022
    """Read it. Write access would let them impersonate any identity."""


_SECRET_OF_ROOT: Final = 0o037
"""The group of a file of root may read it: Kubernetes (`fsGroup`) and system packages pass secrets to processes that
are
not root this way. The owner of any other file can remove the group's access."""


def stamp(path: Path) -> FileStamp:
    """Changes whenever the file or its permissions do. Follows symbolic links. Raises OSError."""
    found = path.stat()
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return (found.st_dev, found.st_ino, *times, found.st_size, found.st_mode, found.st_uid)


def read_guarded(path: Path, what: str, guard: FileGuard, *, of_any_owner: bool = False) -> bytes:
    """The content of the file. `what` names it in messages. `of_any_owner`: skips the check of the owner.

    Raises:
        FileNotFoundError: it does not exist.
        UnusableFile: it cannot be read, is no regular file, is too large, or its permissions are too wide.
    """
    try:
        # Non-blocking: the other end of a named pipe may never be opened.
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
        raise UnusableFile(f"{path}: the {what} is larger than {MAX_BYTES // 1024} KiB, the limit")
    return content


def pem_blocks(content: bytes) -> bytes:
    """The PEM blocks of a file, without the comments, byte order marks and UTF-16 that some readers refuse.

    The unchanged content if it has no block.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        content = content.decode("utf-16", "replace").encode()
    return (
        b"".join(b"%b\n" % block.replace(b"\r", b"") for block in (found[0] for found in _BLOCK.finditer(content)))
        or content
    )


def authorities_in(path: Path) -> str:
    """The certificates of an unguarded file, for verifying others' certificates. Raises OSError."""
    return pem_blocks(path.read_bytes()).decode("ascii", "replace")


def owner_problem(path: Path, found: os.stat_result) -> str | None:
    """Why another user controls the file, with the way out; None if it belongs to this user or root.

    The owner of a file can always change its content and its mode.
    """
    if found.st_uid in (0, os.geteuid()):
        return None
    return (
        f"belongs to another user of this machine (uid {found.st_uid}), who can change it; files of root and of the "
        f"user that reads them (uid {os.geteuid()}) are used: `chown {os.geteuid()} {path}`"
    )


def mode_problem(path: Path, found: os.stat_result, guard: FileGuard) -> str | None:
    """Why the mode of a file is too wide, with the way out; None if it is not."""
    if guard is FileGuard.PUBLIC:
        return f"can be written by others on this machine: `chmod go-w {path}`" if found.st_mode & guard.value else None
    forbidden = _SECRET_OF_ROOT if found.st_uid == 0 else guard.value
    return (
        f"can be read or written by others on this machine: `chmod 600 {path}`" if found.st_mode & forbidden else None
    )


LOOK_S: Final = 1.0
"""The interval of checks, in seconds."""


class FileWatch:
    """A thread that calls one method once a second, until the owner of the method is collected. Thread-safe.

    It holds no reference to the owner.
    """

    def __init__(self, look: Callable[[], object], name: str) -> None:
        """`look`: a bound method of the owner. `name`: of the thread."""
        self._look = weakref.WeakMethod(look)
        self._name = name
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def ensure(self) -> None:
        """Starts the thread unless it runs. Does not block."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=_watch, args=(self._look, _end_of(self._look)), name=self._name)
                thread.daemon = True
                with suppress(RuntimeError):  # the interpreter shuts down
                    thread.start()
                self._thread = thread


def _end_of(look: weakref.WeakMethod[Callable[[], object]]) -> threading.Event:
    """An event that is set when the owner of the method is collected."""
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


STALE_S: Final = 3.0
"""If the last check is older than this, a reader checks the file itself and waits, seconds."""
_SETTLED_S: Final = 2.0
"""A file changed this recently may change again within the resolution of its timestamps: it is read again."""

ContentT = TypeVar("ContentT")

_log = get_logger(__name__)


class WatchedFile(Generic[ContentT]):
    """The content of one file, reloaded when it changes. Thread-safe."""

    def __init__(
        self, path: Path, read: Callable[[Path], ContentT], *, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Reads the file. `read` returns the content, or raises UnusableFile. `now`: a monotonic clock, in seconds.

        Raises:
            UnusableFile: the file cannot be used.
        """
        self.path = path
        self._read = read
        self._now = now
        self._looking = threading.Lock()
        """Held while checking the file; guards writes of the fields below."""
        self._watch = FileWatch(self.look, f"look at {path.name}")
        self._stamp = _settled_stamp(path)
        self._content = read(path)
        self._looked_at = now()
        self._problem = ""
        self.version = 1
        """The number of contents that were read."""
        self.failed_reloads = 0
        """The number of changes after which the file could not be used."""

    def current(self) -> ContentT:
        """The newest usable content. From the first call on, a thread checks the file once a second."""
        self._watch.ensure()
        if self._now() - self._looked_at >= STALE_S and not self._looking.locked():
            return self.look()
        return self._content

    def look(self) -> ContentT:
        """The newest usable content. Checks the file, at most once a second; blocks on the disk."""
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
                _log.warning("a file could not be reloaded; its previous content stays in use", why=self._problem)
            return
        # The stamp from before the read: a change during the read causes another one.
        self._stamp, self._problem = found, ""
        if content != self._content:
            self._content = content
            self.version += 1
            _log.info("a file was reloaded", file=str(self.path), version=self.version)


def _settled_stamp(path: Path) -> FileStamp | None:
    """The stamp of a file; None if the file is missing or too recent for its stamp to show the next change."""
    try:
        found = stamp(path)
    except OSError:
        return None
    return None if abs(time.time() - found[2] / 1e9) < _SETTLED_S else found
