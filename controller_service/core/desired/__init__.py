"""What should run: the stored state, its history, and the plans that change it."""
