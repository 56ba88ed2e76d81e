from __future__ import annotations

import pytest

from tests.compat.previous import NoPreviousRelease, previous_release
from tests.support.faults import Installation


@pytest.fixture(scope="session")
def previous() -> Installation:
    """The previous release. Without its commit the tests are skipped, with the reason."""
    try:
        return previous_release()
    except NoPreviousRelease as missing:
        pytest.skip(str(missing))
