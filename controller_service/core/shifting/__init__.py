"""Traffic that moves to other weights step by step, and back where a guard trips."""
