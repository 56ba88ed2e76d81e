"""A method with one parameter."""

from __future__ import annotations

from typing import Any


def method_taking(wanted: Any) -> Any:
    def method(it: Any) -> None: ...

    method.__annotations__ = {"it": wanted}
    return method
