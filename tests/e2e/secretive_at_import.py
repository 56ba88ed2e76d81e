"""A module that cannot be imported, and holds a secret where that fails."""

from __future__ import annotations

from tests.e2e.secretive_handlers import SECRETS, fail

PASSWORD = SECRETS["local"]
fail("import", PASSWORD)
