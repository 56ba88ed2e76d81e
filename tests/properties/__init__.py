"""Cores against naive models, under arbitrary interleavings."""
