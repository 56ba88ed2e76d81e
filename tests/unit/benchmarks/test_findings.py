"""Figures, and what was expected of them."""

from __future__ import annotations

import json

from benchmarks import findings


def test_a_bound_holds_or_does_not() -> None:
    assert findings.at_least("n", "t", 2.0, 2.0, findings.ratio).holds is True
    assert findings.at_least("n", "t", 1.99, 2.0, findings.ratio).holds is False
    assert findings.at_most("n", "t", 2.0, 2.0, findings.ratio).holds is True
    assert findings.at_most("n", "t", 2.01, 2.0, findings.ratio).holds is False
    assert findings.figure("n", "t", 2.0, findings.ratio).holds is None


def test_the_table_has_a_line_a_figure_with_its_unit_and_its_bound() -> None:
    lines = findings.table(
        [
            findings.at_least("r", "decisions", 123_456, 150_000, findings.rate),
            findings.at_most("m", "memory of the queue", 22e6, 150e6, findings.megabytes),
            findings.figure("d", "delay", 0.0128, findings.milliseconds),
        ]
    ).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "decisions 123,456/s ≥ 150,000/s ✗",
        "memory of the queue 22.0 MB ≤ 150.0 MB ✓",
        "delay 12.8 ms",
    ]
    assert lines[0].index("✗") == lines[1].index("✓"), "aligned"
    assert findings.table([]) == ""


def test_the_document_survives_json_and_says_the_same() -> None:
    written = [
        findings.at_least("r", "decisions", 1.0 / 3, 150_000, findings.rate),
        findings.figure("d", "delay", 0.5, findings.milliseconds),
    ]
    first, second = json.loads(json.dumps(findings.document(written)))
    assert first == {
        "name": "r",
        "title": "decisions",
        "value": 0.333333,
        "at_least": 150_000,
        "at_most": None,
        "as_expected": False,
    }
    assert second["as_expected"] is None
