"""Tokens of slots: read back as written, and no mistake in one goes unnoticed."""

from __future__ import annotations

import string

import pytest

from replica_service.config import ReplicaSettings
from replica_service.convert.slots import Issuer, slot_ops_of
from replica_service.core.events import DispatchReceived, ReleaseReceived, RenewalReceived
from replica_service.core.runs import RouterPeer
from slotmesh.calls.slot_tokens import MAX_TOKEN_CHARS, SlotToken, format_token, parse_token, redacted
from slotmesh.config.declaring import InvalidSettings
from slotmesh.ids import new_id
from slotmesh.internal.v1 import replica_service_pb2
from tests.support.fakes.clock import FakeClock

SECRET = bytes(range(16))
URL_SAFE = string.ascii_letters + string.digits + "-_"


@pytest.mark.parametrize("replica_id", ["decode-x7k2p9", "r", "", "réplique", "a/b.c:1"])
def test_a_token_is_read_back_as_it_was_written(replica_id: str) -> None:
    text = format_token(replica_id, "0123abcd" * 4, SECRET)
    assert set(text) <= set(URL_SAFE)
    assert parse_token(text) == SlotToken(replica_id, "0123abcd" * 4, SECRET)


def test_a_token_in_which_a_character_was_changed_added_or_lost_is_none() -> None:
    text = format_token("decode-x7k2p9", "life", SECRET)
    for at in range(len(text)):
        assert parse_token(text[:at]) is None
        assert parse_token(text[:at] + text[at + 1 :]) is None
        for other in URL_SAFE + "é =+/":
            assert other == text[at] or parse_token(text[:at] + other + text[at + 1 :]) is None
            assert parse_token(text[:at] + other + text[at:]) is None
    for more in (*URL_SAFE, "=", "\n", " "):
        assert parse_token(text + more) is None


@pytest.mark.parametrize("text", ["", "x", "token", "AQ", "é", "x" * (MAX_TOKEN_CHARS + 1), "\x00", "Á" * 40])
def test_what_is_no_token_is_none(text: str) -> None:
    assert parse_token(text) is None


def test_a_token_is_not_shown() -> None:
    text = format_token("decode-x7k2p9", "life", SECRET)
    token = parse_token(text)
    assert token is not None
    assert token.replica_key == ("decode-x7k2p9", "life")
    for shown in (repr(token), str(token), redacted(text)):
        assert "decode-x7k2p9" in shown
        assert text[:5] not in shown
        assert repr(SECRET)[2:-1] not in shown
    assert redacted("not a token") == "not …"
    assert redacted("") == ""


def test_what_makes_no_token_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes, got 15"):
        format_token("r", "life", SECRET[1:])
    with pytest.raises(ValueError, match="over 2048"):
        format_token("r" * 2000, "life", SECRET)


def test_every_replica_can_write_its_tokens() -> None:
    longest = ReplicaSettings(handler="module:Name", replica_id="\N{SNOWMAN}" * 255)
    text = format_token(longest.make_replica_id(), new_id(), SECRET)
    assert parse_token(text) is not None
    with pytest.raises(InvalidSettings, match="at most 255"):
        ReplicaSettings(handler="module:Name", replica_id="r" * 256)


def test_operations_do_not_show_secrets() -> None:
    clock = FakeClock()
    token = format_token("r", "life", SECRET)
    frame = replica_service_pb2.SlotOps()
    frame.ops.add(op_id=1).dispatch.token = token
    frame.ops.add(op_id=2).renew.token = token
    frame.ops.add(op_id=3).release.token = token
    ops = slot_ops_of(frame, RouterPeer(), Issuer(clock, "r", "life"), clock.now())
    assert [op.secret for _, op in ops if isinstance(op, DispatchReceived | RenewalReceived | ReleaseReceived)] == [
        SECRET
    ] * 3
    assert repr(SECRET) not in repr(ops)
