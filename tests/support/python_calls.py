"""What something costs, without a clock: how many functions of Python it calls."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def calls_to_python(run: Callable[[], object]) -> int:
    """How many functions of Python this calls, on this thread; those that are written in C do not count."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    was_collecting = gc.isenabled()
    gc.disable()  # a collection runs callbacks, and `__del__` of whatever others have left behind
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
        if was_collecting:
            gc.enable()
    return count
