"""What a scrape says of bearer tokens."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from slotmesh.security.tokens import BadToken, Tokens
from slotmesh.telemetry.security_metrics import observe_tokens
from slotmesh.telemetry.setup import setup_metrics
from tests.support.token_files import accepts, created


def test_refusals_are_counted_by_what_is_wrong(tmp_path: Path) -> None:
    old = created(path := tmp_path / "tokens.json", for_s=-1)
    clock = 0.0
    tokens = Tokens(path, clock=lambda: clock)
    metrics = setup_metrics("slotmesh-test", port=0)
    observe_tokens(metrics.meter, tokens)
    try:
        for token in (old, "nothing"):
            with pytest.raises(BadToken):
                tokens.identify(token)
        path.write_text("{}")
        clock += 5
        accepts(tokens, old)
        with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=10) as answer:
            page = answer.read().decode()
    finally:
        metrics.shutdown()
    assert 'slotmesh_token_refusals_total{slotmesh_token_problem="expired"} 2.0' in page
    assert 'slotmesh_token_refusals_total{slotmesh_token_problem="malformed"} 1.0' in page
    assert 'slotmesh_token_refusals_total{slotmesh_token_problem="forged"} 0.0' in page
    assert "slotmesh_token_reload_failures_total 1.0" in page
