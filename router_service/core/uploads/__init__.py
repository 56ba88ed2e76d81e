"""Payloads that come in chunks, and what waits behind them."""
