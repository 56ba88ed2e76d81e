"""Sessions, slots, uploads, streaming, shadows and taps in a router's core."""
