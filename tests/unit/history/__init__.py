"""The history checker, proved by seeded defects."""
