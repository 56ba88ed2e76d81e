"""What all ends of streams share: features, limits, pacing, chunks, bounds of frames. Pure: cores import it."""
