"""Tests of mixed meshes are skipped with the reason where the clone lacks the commit of the previous release."""

from __future__ import annotations

import pytest

from tests.compat import previous


def test_a_commit_that_the_clone_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previous, "previous_commit", lambda: "0" * 40)
    with pytest.raises(previous.NoPreviousRelease, match=r"no git clone here has 0{40}.*previous\.toml"):
        previous.previous_release()


def test_the_file_names_a_whole_commit() -> None:
    assert len(bytes.fromhex(previous.previous_commit())) == 20
