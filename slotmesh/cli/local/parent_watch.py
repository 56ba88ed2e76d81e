"""`python -m slotmesh.cli.local.parent_watch FD MODULE ARGUMENTS…`: runs a module that ends when its launcher does.

For a module that does not watch its launcher and may hang, such as one that imports users' code. FD is the launcher's
`ParentPipe`; when its other end is closed, by SIGKILL of the launcher too, the process ends immediately.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from typing import Final

ORPHANED: Final = 3
"""Exit status of a process whose launcher has ended."""


def _end_with(fd: int) -> None:
    os.read(fd, 1)  # nothing is ever written there
    os._exit(ORPHANED)


if __name__ == "__main__":
    _, fd, module, *arguments = sys.argv
    threading.Thread(target=_end_with, args=(int(fd),), name="parent-watch", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
