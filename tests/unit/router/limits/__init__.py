"""Admission, budgets, quotas, and what tenants get."""
