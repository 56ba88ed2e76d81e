"""Sessions: which rosters their clients have acknowledged, and what became of their calls when they have moved."""
