"""Commands whose output has an encoding that lacks characters, as ASCII in some containers."""

from __future__ import annotations

import io
import json
import sys

import pytest

from slotmesh import cli


def written(text: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        cli._escape_unencodable()
        stdout.write(text)
        stdout.flush()
        return raw.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_encoding_lacks_is_written_as_in_json(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\N{SQUARE ROOT} é \N{GRINNING FACE}"
    output = written(json.dumps(text, ensure_ascii=False), encoding, monkeypatch)
    assert json.loads(output.decode(encoding)) == text
    assert rb"\u221a" in output


def test_utf8_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written("\N{SQUARE ROOT}", "utf-8", monkeypatch) == "\N{SQUARE ROOT}".encode()


def test_what_is_no_text_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnicodeEncodeError):
        written("\udce9", "utf-8", monkeypatch)


def test_commands_begin_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Began(Exception):
        pass

    def begin() -> None:
        raise Began

    monkeypatch.setattr(cli, "_escape_unencodable", begin)
    with pytest.raises(Began):
        cli.main()
