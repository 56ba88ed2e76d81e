"""The symlinks of an unpacked snapshot: to ignored files, which are no part of the version and stay where they are.

Invariants: no symlink of the snapshot is followed, so nothing in the project is touched. Links are not part of what is
whole: where they are not those of the manifest, they are set anew.
Owner: `shell.code.storage`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def make_links(files: Path, links: Mapping[str, str]) -> None:
    """Those that are not there yet: the folders that they are in are, and can be written to."""
    for path, place in links.items():
        with suppress(FileExistsError):
            (files / path).symlink_to(place)


def has_links(files: Path, links: Mapping[str, str]) -> bool:
    """Whether each of these is there, and leads where it is to."""
    try:
        return all(os.readlink(files / path) == place for path, place in links.items())  # noqa: PTH115 - a text
    except OSError:
        return False


def set_links(files: Path, links: Mapping[str, str]) -> None:
    """Has these links, and no others, whatever is there: links of before, or a part of these."""
    for place, _, _ in os.walk(files):
        os.chmod(place, 0o755)  # noqa: PTH101, S103 - a text, for reading
    for place, folders, names in os.walk(files, topdown=False):
        for name in (*folders, *names):
            found = Path(place, name)
            if found.is_symlink():
                if links.get(found.relative_to(files).as_posix()) != str(found.readlink()):
                    found.unlink()
            elif name in folders:
                with suppress(OSError):  # it is not empty; else it was there for links only
                    found.rmdir()
    for path in links:
        (files / path).parent.mkdir(parents=True, exist_ok=True)
    make_links(files, links)
    for place, _, _ in os.walk(files):
        os.chmod(place, 0o555)  # noqa: PTH101, S103 - a text, for reading
