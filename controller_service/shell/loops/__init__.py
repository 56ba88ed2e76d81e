"""What runs again and again: reconciling, launching, scaling, rollouts, shifts."""
