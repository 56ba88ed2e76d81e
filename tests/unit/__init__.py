"""One module at a time, no I/O where there is none to test."""
