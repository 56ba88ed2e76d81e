"""Tests by layer: unit, properties, scenarios, sim, contract, e2e, arch."""
