"""A file that is read again while the process runs.

Invariants: a file that cannot be used never takes the place of one that could, and each such problem is logged and
counted once. Whoever asks gets what was in the file a few seconds ago, at the most, after a long silence as well; no
event loop waits for a disk or a parser: a thread looks, from the first question on. Only that first one may wait, and
those to a process so busy that its threads do not run.
Owner: who decides by the file. Any thread may ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from slotmesh.security.file_watch import LOOK_S, FileWatch
from slotmesh.security.secret_files import FileStamp, UnusableFile, stamp
from slotmesh.telemetry.log import get_logger

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
