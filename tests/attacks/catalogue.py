"""All attacks, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.attacks import cancels, fuzz, http_floods, messages, metadata, resets, sessions, silent, slowly, tokens
from tests.attacks.attack import Attack

_MODULES: Final = (tokens, silent, slowly, resets, cancels, sessions, metadata, messages, fuzz, http_floods)

ATTACKS: Final[Mapping[str, Attack]] = {module.ATTACK.name: module.ATTACK for module in _MODULES}
