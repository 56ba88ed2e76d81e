"""The table and the document of a benchmark."""

from __future__ import annotations

import json
from array import array

import pytest

from benchmarks.catalogue import BASELINE, CatalogueEntry
from benchmarks.report import document, duration, table
from benchmarks.statistics import Sample, Summary, summarise


async def not_run(_seconds: float) -> Sample:
    raise AssertionError("a report runs nothing")


ENTRIES = [
    CatalogueEntry(name=BASELINE, title="bare server", run=not_run),
    CatalogueEntry(name="fast", title="a fast load", run=not_run, target=40),
    CatalogueEntry(name="slow", title="a slow load", run=not_run, target=0.5),
]


def summaries() -> dict[str, Summary]:
    bare = [Sample(2000, 1.0, array("d", [0.005]))]
    return {
        BASELINE: summarise(bare, bare),
        "fast": summarise([Sample(123_456, 1.0, array("d", [0.0021]))], bare),
        "slow": summarise([Sample(900, 1.0, array("d", [0.0123]))], bare),
    }


def test_the_table_has_a_line_a_load_with_its_ratio_and_whether_it_is_as_expected() -> None:
    heading, bare, fast, slow = (" ".join(line.split()) for line in table(ENTRIES, summaries()).splitlines())
    assert heading == "calls/s p50 p99 × bare expected"
    assert bare == "bare server 2,000 5.00 ms 5.00 ms 1.00"
    assert fast == "a fast load 123,456 2.10 ms 2.10 ms 62 ≥ 40 ✓"
    assert slow == "a slow load 900 12 ms 12 ms 0.45 ≥ 0.5 ✗"


def test_the_document_survives_json_and_says_the_same() -> None:
    told = json.loads(json.dumps(document(ENTRIES, summaries(), {"rounds": 1})))
    by_name = {result["name"]: result for result in told["results"]}
    assert told["settings"] == {"rounds": 1}
    assert list(by_name) == [BASELINE, "fast", "slow"]
    assert by_name["fast"]["calls_per_s"] == 123_456
    assert by_name["fast"]["p50_s"] == 0.0021
    assert by_name["fast"]["as_expected"] is True
    assert by_name["slow"]["as_expected"] is False
    assert by_name[BASELINE]["as_expected"] is None


@pytest.mark.parametrize(("seconds", "text"), [(0.00075, "0.75 ms"), (0.00999, "9.99 ms"), (0.0314, "31 ms")])
def test_durations_have_as_many_digits_as_mean_something(seconds: float, text: str) -> None:
    assert duration(seconds) == text
