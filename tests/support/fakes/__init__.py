"""Fakes that all layers share, held to the same contract tests as the real things."""
