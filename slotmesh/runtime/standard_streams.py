"""The descriptors 0, 1 and 2 of a process that was started without some of them, as some supervisors and cron do.

The next socket or file would get such a number, what is printed would be written to it, and libuv ends the process when
it closes one.
"""

from __future__ import annotations

import os
import sys


def open_missing_streams() -> None:
    """Opens the null device in place of each closed one of stdin, stdout and stderr. Call it before other files are."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the lowest free descriptor is the one that is missing
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123 - as long as the process lives
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
